#include "double.h"

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  pthread_mutex_lock(&lock);
  struct context *c = GET(context, context, "alloc_pd");
  int error = enter_create("alloc_pd", c);
  if (error) return leave_with(NULL, error);
  struct pd *p = create(sizeof *p);
  p->ibv.context = context;
  p->alive = ALIVE;
  c->objects++;
  live[PD]++;
  return leave_with(&p->ibv, 0);
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
  pthread_mutex_lock(&lock);
  struct pd *p = GET(pd, pd, "dealloc_pd");
  int error = enter_control("dealloc_pd");
  if (error || p->objects) return leave(error ? error : EBUSY);
  p->alive = 0;
  ((struct context *)pd->context)->objects--;
  live[PD]--;
  return leave(0);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
  pthread_mutex_lock(&lock);
  struct pd *p = GET(pd, pd, "reg_mr");
  int error = enter_create("reg_mr", (struct context *)pd->context);
  size_t page = sysconf(_SC_PAGESIZE), begin = (size_t)addr & -page;
  int writes = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  if (!error && (!length || (writes && !(access & IBV_ACCESS_LOCAL_WRITE)))) error = EINVAL;
  if (!error && madvise((void *)begin, (size_t)addr + length - begin, MADV_NORMAL)) error = EFAULT;
  if (!error && n_mrs == MAX_MR) error = ENOMEM;
  if (error) return leave_with(NULL, error);
  struct mr *m = create(sizeof *m);
  m->ibv = (struct ibv_mr){
      .context = pd->context, .pd = pd, .addr = addr, .length = length, .handle = n_mrs};
  m->ibv.lkey = n_mrs << 8 | 0x11;
  m->ibv.rkey = n_mrs << 8 | 0x22;
  m->access = access;
  m->alive = ALIVE;
  mrs[n_mrs++] = m;
  p->objects++;
  live[MR]++;
  return leave_with(&m->ibv, 0);
}

int ibv_dereg_mr(struct ibv_mr *mr) {
  pthread_mutex_lock(&lock);
  struct mr *m = GET(mr, mr, "dereg_mr");
  int error = enter_control("dereg_mr");
  if (error) return leave(error);
  m->alive = 0;
  ((struct pd *)mr->pd)->objects--;
  live[MR]--;
  return leave(0);
}

int allowed(const struct ibv_pd *pd, uint32_t key, int remote, uint64_t addr, uint64_t length,
            int access) {
  if ((key & 0xff) != (remote ? 0x22 : 0x11) || key >> 8 >= n_mrs) return 0;
  const struct mr *m = mrs[key >> 8];
  uint64_t begin = (uintptr_t)m->ibv.addr;
  return m->alive == ALIVE && m->ibv.pd == pd && (m->access & access) == access && addr >= begin &&
         addr - begin <= m->ibv.length && length <= m->ibv.length - (addr - begin);
}
