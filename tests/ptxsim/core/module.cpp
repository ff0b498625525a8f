// The Python face of the interpreter; tests/ptxsim/simulator.py wraps it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "launch.h"

namespace py = pybind11;

namespace ptxsim {
namespace {

// Keeps the arrays alive whose memory the buffers use.
struct PyMemory {
  GlobalMemory memory;
  std::vector<py::array> arrays;

  uint64_t add(const std::string& name, py::array array, bool read_only, bool undefined, bool settled,
               uint64_t misalign) {
    if (!(array.flags() & py::array::c_style)) throw std::invalid_argument(name + ": expected a C-contiguous array");
    if (!read_only && !array.writeable()) throw std::invalid_argument(name + ": expected a writeable array");
    arrays.push_back(array);
    auto* host = static_cast<uint8_t*>(const_cast<void*>(array.data()));
    return memory.add(name, host, static_cast<uint64_t>(array.nbytes()), read_only, undefined, settled, misalign);
  }
};

Dimensions dimensions(const std::array<uint32_t, 3>& values) { return {values[0], values[1], values[2]}; }

LaunchOptions read_options(const py::dict& given) {
  LaunchOptions options;
  for (const auto& [key, value] : given) {
    const auto name = py::cast<std::string>(key);
    const auto text = [&value = value] { return py::cast<std::string>(value); };
    const auto pick = [&](std::initializer_list<const char*> names) {
      uint8_t index = 0;
      for (const char* candidate : names) {
        if (text() == candidate) return index;
        ++index;
      }
      throw std::invalid_argument(name + ": unknown value " + text());
    };
    if (name == "completion") {
      options.completion = static_cast<Completion>(pick({"early", "late", "random"}));
    } else if (name == "schedule") {
      options.schedule = static_cast<Schedule>(pick({"round_robin", "random", "greedy"}));
    } else if (name == "seed") {
      options.seed = py::cast<uint64_t>(value);
    } else if (name == "races") {
      options.races = py::cast<bool>(value);
    } else if (name == "warp_races") {
      options.warp_races = py::cast<bool>(value);
    } else if (name == "dependent") {
      options.dependent = py::cast<bool>(value);
    } else if (name == "threads") {
      options.threads = py::cast<int>(value);
    } else if (name == "instruction_limit") {
      options.instruction_limit = py::cast<uint64_t>(value);
    } else {
      throw std::invalid_argument("unknown launch option " + name);
    }
  }
  return options;
}

py::dict place_of(const Module& module, const Instruction& in) {
  const auto file = [&module](uint32_t number) {
    const auto found = module.files.find(number);
    return found == module.files.end() ? std::string() : found->second;
  };
  py::dict place;
  place["text"] = in.text;
  place["ptx_line"] = in.source.ptx_line;
  place["file"] = file(in.source.file);
  place["line"] = in.source.line;
  place["outer_file"] = file(in.source.outer_file);
  place["outer_line"] = in.source.outer_line;
  return place;
}

py::dict report_of(Program& program, const std::string& entry, const GlobalMemory& memory, const LaunchResult& result) {
  const Kernel& kernel = program.kernel(entry);
  py::list findings;
  for (const FindingRecord& record : result.findings) {
    py::dict finding = place_of(program.module(), kernel.code[static_cast<size_t>(record.instruction)]);
    finding["kind"] = name_of(record.kind);
    finding["message"] = record.message;
    finding["count"] = record.count;
    finding["other"] = py::none();
    if (record.other >= 0)
      finding["other"] = place_of(program.module(), kernel.code[static_cast<size_t>(record.other)]);
    findings.append(finding);
  }
  py::list instructions;
  for (size_t i = 0; i < kernel.code.size(); ++i) {
    const InstructionCounters& c = result.counters.instructions[i];
    if (c.executions == 0) continue;
    py::dict row = place_of(program.module(), kernel.code[i]);
    row["executions"] = c.executions;
    row["active_lanes"] = c.active_lanes;
    row["global_bytes"] = c.global_bytes;
    row["sectors"] = c.sectors;
    row["ideal_sectors"] = c.ideal_sectors;
    row["wavefronts"] = c.wavefronts;
    row["ideal_wavefronts"] = c.ideal_wavefronts;
    instructions.append(row);
  }
  py::dict buffers;
  for (size_t i = 0; i < memory.buffers().size(); ++i) {
    const BufferCounters& c = result.counters.buffers[i];
    py::dict row;
    row["load_bytes"] = c.load_bytes;
    row["store_bytes"] = c.store_bytes;
    row["load_sectors"] = c.load_sectors;
    row["store_sectors"] = c.store_sectors;
    buffers[py::str(memory.buffers()[i]->name)] = row;
  }
  py::dict report;
  report["entry"] = entry;
  report["completed"] = result.completed;
  report["findings"] = findings;
  report["instructions"] = instructions;
  report["buffers"] = buffers;
  report["warp_instructions"] = result.instructions;
  report["barriers"] = result.counters.barriers;
  return report;
}

py::dict launch(Program& program, const std::string& entry, PyMemory& memory, const std::array<uint32_t, 3>& grid,
                const std::array<uint32_t, 3>& block, uint64_t dynamic_shared, const py::bytes& parameters,
                const py::dict& given) {
  const LaunchOptions options = read_options(given);
  const std::string bytes = parameters;
  LaunchResult result;
  {
    const py::gil_scoped_release release;
    result = run_launch(program, entry, memory.memory, dimensions(grid), dimensions(block), dynamic_shared,
                        std::vector<uint8_t>(bytes.begin(), bytes.end()), options);
  }
  return report_of(program, entry, memory.memory, result);
}

py::dict kernel_info(const Program& program, const std::string& name) {
  const Kernel& kernel = program.kernel(name);
  py::list parameters;
  for (const KernelParameter& p : kernel.parameters) parameters.append(py::make_tuple(p.name, p.offset, p.size));
  py::dict info;
  info["parameters"] = parameters;
  info["parameter_bytes"] = kernel.parameter_bytes;
  info["static_shared"] = kernel.static_shared;
  info["local_bytes"] = kernel.local_bytes;
  info["instructions"] = kernel.code.size();
  info["max_threads"] = kernel.max_threads;
  return info;
}

Buffer& variable(Program& program, const std::string& name) {
  for (const auto& buffer : program.variables()) {
    if (buffer->name == name) return *buffer;
  }
  throw std::invalid_argument("variable: the module has no .global or .const variable " + name);
}

}  // namespace
}  // namespace ptxsim

PYBIND11_MODULE(_core, m) {
  using namespace ptxsim;
  py::register_exception<ParseError>(m, "ParseError", PyExc_ValueError);
  py::class_<Program>(m, "Program")
      .def(py::init<const std::string&>(), py::arg("text"))
      .def("kernel_names", &Program::kernel_names)
      .def("kernel_info", &kernel_info, py::arg("name"))
      .def("target", [](const Program& program) { return program.module().target; })
      .def("read_variable",
           [](Program& program, const std::string& name) {
             const Buffer& buffer = variable(program, name);
             return py::bytes(reinterpret_cast<const char*>(buffer.host), buffer.size);
           })
      .def("write_variable", [](Program& program, const std::string& name, const std::string& bytes) {
        const Buffer& buffer = variable(program, name);
        if (bytes.size() != buffer.size)
          throw std::invalid_argument(name + ": expected " + std::to_string(buffer.size) + " bytes");
        std::copy(bytes.begin(), bytes.end(), buffer.host);
      });
  py::class_<PyMemory>(m, "Memory")
      .def(py::init<>())
      .def("add", &PyMemory::add, py::arg("name"), py::arg("array"), py::arg("read_only") = false,
           py::arg("undefined") = false, py::arg("settled") = false, py::arg("misalign") = 0);
  m.def("launch", &launch, py::arg("program"), py::arg("entry"), py::arg("memory"), py::arg("grid"), py::arg("block"),
        py::arg("dynamic_shared"), py::arg("parameters"), py::arg("options"));
}
