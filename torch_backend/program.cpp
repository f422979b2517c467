#include "library.h"
#include "process_group.h"

namespace goccl {

void ProcessGroupGoccl::registerProgram(goccl_program program, uint64_t least, uint64_t most) {
  refuseInBatch("goccl.plan.register");
  const goccl_program_use use{sizeof use, least, most};
  const goccl_comm comm = this->comm();
  run(comm, library().program_register_async, comm, program, &use);
}

void ProcessGroupGoccl::unregisterProgram(goccl_program program) {
  refuseInBatch("goccl.plan.unregister");
  const goccl_comm comm = this->comm();
  run(comm, library().program_unregister_async, comm, program);
}

}  // namespace goccl
