#include "program.h"

#include <pybind11/pybind11.h>

#include "process_group.h"

namespace py = pybind11;

namespace goccl {

Program::Program(const std::string& text)
    : handle_(ask<goccl_program>(library().program_load, text.data(), text.size())) {}

void ProcessGroupGoccl::registerProgram(const Program& program, uint64_t least, uint64_t most) {
  refuseInBatch("goccl.plan.register");
  const goccl_program_use use{sizeof use, least, most};
  const goccl_comm comm = this->comm();
  run(comm, library().program_register_async, comm, program.handle(), &use);
}

void ProcessGroupGoccl::unregisterProgram(const Program& program) {
  refuseInBatch("goccl.plan.unregister");
  const goccl_comm comm = this->comm();
  run(comm, library().program_unregister_async, comm, program.handle());
}

void bindProgram(py::module_& module) {
  py::class_<Program>(module, "Program",
                      "A program, read from the text of a file, and checked. It never changes.")
      .def(py::init<const std::string&>(), py::arg("text"),
           py::call_guard<py::gil_scoped_release>())
      .def("text", &Program::text, py::call_guard<py::gil_scoped_release>(),
           "Its text as goccl_program_text() in goccl.h writes it.")
      .def("export", &Program::write, py::arg("to"), py::call_guard<py::gil_scoped_release>(),
           "Its text in another format, as goccl_program_export() in goccl.h writes it.")
      .def("verify", &Program::verify, py::arg("nbytes"), py::call_guard<py::gil_scoped_release>(),
           "What goccl_program_verify() in goccl.h tells of it: a JSON object.");
}

}  // namespace goccl
