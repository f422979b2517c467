/* A process that has a life word and MEGABYTES of memory: main MEGABYTES. It tells the descriptor
 * and the mark, and ends as a line of its input says. */
#define _GNU_SOURCE
#include "../../life.c"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { MARK = 77 };

int main(int argc, char **argv) {
  size_t bytes = argc > 1 ? (size_t)atol(argv[1]) << 20 : 0;
  char *memory = malloc(bytes + 1);
  if (memory == NULL) return 1;
  memset(memory, 1, bytes + 1);
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  int fd = memfd_create("goccl-life", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, (off_t)page) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
    return 1;
  goccl_life *own = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (own == MAP_FAILED) return 1;
  own->mark = MARK;
  if (goccl_life_start(own, eventfd(0, EFD_NONBLOCK))) return 1;
  printf("%d %d\n", fd, MARK);
  fflush(stdout);
  char line[16] = "";
  if (fgets(line, sizeof line, stdin) == NULL) return 1;
  if (strcmp(line, "exit\n") == 0) exit(0);
  if (strcmp(line, "abort\n") == 0) abort();
  if (strcmp(line, "fork\n") == 0) {
    pid_t child = fork();
    if (child == 0) exit(0);
    waitpid(child, NULL, 0);
    puts(own->word != 0 ? "held" : "let go");
    fflush(stdout);
    pause();
  }
  _exit(memory[bytes] - 1);
}
