/* A host that loads two copies of the library: twice <first> <second>. The later one serves nobody,
 * and the first one goes on. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "goccl.h"

typedef goccl_result get_id(goccl_unique_id *id);
typedef const char *last_error(void);

int main(int argc, char **argv) {
  const goccl_result want[2] = {GOCCL_OK, GOCCL_UNSUPPORTED};
  void *copies[2];
  for (int i = 0; i < 2; i++) {
    copies[i] = argc == 3 ? dlopen(argv[1 + i], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (copies[i] == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
  }
  for (int i = 1; i >= 0; i--) {
    goccl_unique_id id;
    goccl_result got = ((get_id *)dlsym(copies[i], "goccl_get_unique_id"))(&id);
    const char *text = ((last_error *)dlsym(copies[i], "goccl_last_error"))();
    if (got != want[i]) return fprintf(stderr, "copy %d: %d: %s\n", i, (int)got, text), 1;
    if (i == 1 && (strstr(text, argv[1]) == NULL || strstr(text, argv[2]) == NULL)) {
      return fprintf(stderr, "the text does not name both: %s\n", text), 1;
    }
    if (i == 1) puts(text);
  }
  return 0;
}
