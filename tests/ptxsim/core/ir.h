// The typed form of a PTX module: what the parser produces and the linker and executor read.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptxsim {

constexpr int kLanes = 32;
constexpr uint32_t kFullMask = 0xffffffffu;

enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kU8,
  kS8,
  kB16,
  kU16,
  kS16,
  kF16,
  kBF16,
  kB32,
  kU32,
  kS32,
  kF32,
  kTF32,
  kF16x2,
  kBF16x2,
  kB64,
  kU64,
  kS64,
  kF64,
  kB128,
};

int size_of(Type type);  // bytes in memory; a predicate has none
bool is_float(Type type);
bool is_signed(Type type);
inline bool is_wide(Type type) { return size_of(type) == 8; }  // lives in 64-bit lanes of the register file

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kConst, kParam, kReg };

enum class Opcode : uint16_t {
  // Arithmetic on registers (alu*.cpp)
  kAbs,
  kAdd,
  kAddc,
  kAnd,
  kBfe,
  kBfi,
  kBfind,
  kBrev,
  kClz,
  kCnot,
  kCopysign,
  kCos,
  kCvt,
  kCvtPack,
  kDiv,
  kDp2a,
  kDp4a,
  kEx2,
  kFma,
  kLg2,
  kLop3,
  kMad,
  kMadc,
  kMad24,
  kMax,
  kMin,
  kMov,
  kMovPack,
  kMovUnpack,
  kMul,
  kMul24,
  kNeg,
  kNot,
  kOr,
  kPopc,
  kPrmt,
  kRcp,
  kRem,
  kRsqrt,
  kSad,
  kSelp,
  kSet,
  kSetp,
  kShf,
  kShl,
  kShr,
  kSin,
  kSlct,
  kSqrt,
  kSub,
  kSubc,
  kTanh,
  kTestp,
  kXor,
  // Memory (execute_memory.cpp, execute_atomics.cpp)
  kAtom,
  kCvta,
  kIsspacep,
  kLd,
  kMapa,
  kRed,
  kSt,
  // Warp collectives (execute_collectives.cpp)
  kActivemask,
  kElect,
  kMatch,
  kRedux,
  kShfl,
  kVote,
  kWarpSync,
  // Control
  kBar,
  kBra,
  kBrx,
  kCall,
  kDependencyWait,
  kExit,
  kNop,
  kRet,
  kTrap,
  kMovClock,
  // Ordering
  kMembar,
  kFenceProxy,
  // Tensor instructions (execute_tensor.cpp, tensor.cpp)
  kLdmatrix,
  kMma,
  kMovmatrix,
  kStmatrix,
  // Asynchronous copies (async.cpp)
  kCpAsync,
  kCpAsyncCommit,
  kCpAsyncWait,
  kCpAsyncMbarrier,
  // Barriers in shared memory (execute_mbarrier.cpp), bulk copies (execute_bulk.cpp), warpgroup mma (execute_wgmma.cpp)
  kMbarrier,
  kBulkCopy,
  kBulkCommit,
  kBulkWait,
  kWgmma,
  kWgmmaFence,
  kWgmmaCommit,
  kWgmmaWait,
};

enum class Rounding : uint8_t { kNone, kRn, kRz, kRm, kRp, kRna, kRni, kRzi, kRmi, kRpi };
enum class Compare : uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kLo,
  kLs,
  kHi,
  kHs,
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,
  kNum,
  kNan,
};
enum class Combine : uint8_t { kNone, kAnd, kOr, kXor };
enum class Part : uint8_t { kNone, kLo, kHi, kWide };  // of a product
enum class AtomicOp : uint8_t { kNone, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor, kExch, kCas };
enum class ShuffleMode : uint8_t { kUp, kDown, kBfly, kIdx };
enum class VoteMode : uint8_t { kAll, kAny, kUni, kBallot };
enum class MatchMode : uint8_t { kAny, kAll };
enum class BarMode : uint8_t { kSync, kArrive, kRedPopc, kRedAnd, kRedOr };
enum class Semantics : uint8_t { kWeak, kRelaxed, kAcquire, kRelease, kAcqRel, kSeqCst, kVolatile };
enum class Scope : uint8_t { kCta, kCluster, kGpu, kSys };
enum class MbarrierMode : uint8_t {
  kInit,
  kInvalidate,
  kArrive,
  kArriveExpectTx,
  kExpectTx,
  kCompleteTx,
  kTestWait,
  kTryWait,
  kPendingCount
};
enum class BulkMode : uint8_t { kLoad, kStore, kReduce };  // global to shared, shared to global, global += shared
enum class PrmtMode : uint8_t { kIndex, kF4e, kB4e, kRc8, kEcl, kEcr, kRc16 };
enum class FloatClass : uint8_t { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };

// Every modifier an opcode can carry, decoded. A modifier that has no field here is an error in the parser.
struct Modifiers {
  Rounding rounding = Rounding::kNone;
  Compare compare = Compare::kEq;
  Combine combine = Combine::kNone;
  Part part = Part::kNone;
  AtomicOp atomic = AtomicOp::kNone;
  ShuffleMode shuffle = ShuffleMode::kIdx;
  VoteMode vote = VoteMode::kAll;
  MatchMode match = MatchMode::kAny;
  BarMode bar = BarMode::kSync;
  Semantics semantics = Semantics::kWeak;
  Scope scope = Scope::kGpu;
  PrmtMode prmt = PrmtMode::kIndex;
  FloatClass float_class = FloatClass::kFinite;
  MbarrierMode mbarrier = MbarrierMode::kInit;
  BulkMode bulk = BulkMode::kLoad;
  Space space = Space::kGeneric;
  uint8_t rank = 0;              // cp.async.bulk.tensor: dimensions; 0 = not a tensor
  uint8_t vector = 1;            // elements of a vector access, matrices of ldmatrix
  uint8_t bytes = 0;             // cp.async: bytes a lane copies
  uint16_t m = 0, n = 0, k = 0;  // mma shape
  bool ftz = false;
  bool sat = false;
  bool relu = false;
  bool approx = false;
  bool full_range = false;  // div.full
  bool nan = false;         // min/max.NaN
  bool xorsign_abs = false;
  bool carry_out = false;     // .cc
  bool wrap = false;          // shf.wrap, otherwise clamp
  bool shift_left = false;    // shf.l; bfind/bmsk modes
  bool shift_amount = false;  // bfind.shiftamt
  bool trans = false;         // ldmatrix/stmatrix
  bool to = false;            // cvta.to
  bool all = false;           // cp.async.wait_all
  bool noinc = false;         // cp.async.mbarrier.arrive.noinc
  bool parity = false;        // mbarrier waits: the operand is a phase's parity, not a state
  bool read = false;          // cp.async.bulk.wait_group.read
  bool async_proxy = false;   // fence.proxy.async
  bool drop = false;          // mbarrier.arrive_drop
  bool a_registers = false;   // wgmma: A from registers
  bool negate_a = false;      // wgmma: imm-scale
  bool negate_b = false;
  bool trans_a = false;  // wgmma: MN-major
  bool trans_b = false;
  bool ignore_source = false;  // cp.async with an ignore-src predicate instead of a source size
};

enum class OperandKind : uint8_t {
  kSink,  // `_`
  kRegister,
  kImmediate,  // value holds the bits, already converted to `type`
  kSpecial,    // %tid.x and the like; value holds a SpecialRegister
  kSymbol,     // a variable's address (plus value)
  kAddress,    // [register + value] or [symbol + value] or [value]
  kLabel,
};

enum class SpecialRegister : uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneid,
  kWarpid,
  kNwarpid,
  kSmid,
  kNsmid,
  kGridid,
  kLanemaskEq,
  kLanemaskLt,
  kLanemaskLe,
  kLanemaskGt,
  kLanemaskGe,
  kDynamicSmemSize,
  kTotalSmemSize,
  kClusterIdX,
  kClusterIdY,
  kClusterIdZ,
  kNclusterIdX,
  kNclusterIdY,
  kNclusterIdZ,
  kClusterCtaidX,
  kClusterCtaidY,
  kClusterCtaidZ,
  kClusterNctaidX,
  kClusterNctaidY,
  kClusterNctaidZ,
  kClusterCtarank,
  kClusterNctarank,
  kCount,  // the rest change while a kernel runs and are read by kMovClock
  kClock,
  kClockHi,
  kClock64,
  kGlobaltimer,
  kGlobaltimerLo,
  kGlobaltimerHi,
};

enum class Literal : uint8_t { kInteger, kF32, kF64 };  // how an immediate was written

struct Operand {
  OperandKind kind = OperandKind::kSink;
  Literal literal = Literal::kInteger;
  Type type = Type::kNone;           // how the instruction reads or writes it
  Type register_type = Type::kNone;  // declared type of the register
  bool negate = false;               // !%p
  uint32_t reg = 0;                  // register number in its function (base register of an address)
  bool has_register = false;         // address with a base register
  uint64_t value = 0;                // immediate bits, address offset, special register
  std::string name;                  // symbol or label
  // Filled by the linker: byte offset of the value in a warp's register file (registers, immediates, special
  // registers).
  uint32_t slot = 0;
};

struct SourceLine {
  uint32_t ptx_line = 0;
  uint32_t file = 0;        // index of .file, 0 = unknown
  uint32_t line = 0;        // .cu line of .loc; for inlined code the innermost line
  uint32_t outer_file = 0;  // where the outermost inlined_at points; equals file/line otherwise
  uint32_t outer_line = 0;
};

struct AluArguments;
using AluFunction = void (*)(const AluArguments&);

struct Instruction {
  Opcode opcode = Opcode::kNop;
  Type type = Type::kNone;         // operation type; for cvt and mma the destination's
  Type source_type = Type::kNone;  // cvt, set, mma A
  Type type_b = Type::kNone;       // mma B
  Type type_c = Type::kNone;       // mma C
  Modifiers mod;
  bool guarded = false;
  bool guard_negate = false;
  Operand guard;
  std::vector<Operand> dst;
  std::vector<Operand> src;      // braces flattened
  int32_t target = -1;           // branch: index in the function's code
  std::vector<int32_t> targets;  // brx.idx: the table
  SourceLine source;
  std::string text;  // the statement, for messages
  // Filled by the linker
  AluFunction alu = nullptr;
  bool alu_direct = false;  // every operand's lanes have the width the function expects
};

struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  Type type = Type::kB8;
  uint64_t size = 0;  // bytes; 0 for .extern .shared arrays
  uint64_t align = 1;
  bool is_extern = false;
  std::vector<uint8_t> initial;                            // empty: zeros (global, const) or nothing
  std::vector<std::pair<uint64_t, std::string>> pointers;  // initialisers that are addresses: byte offset, symbol
};

struct Register {
  std::string name;
  Type type;
};

struct Function {
  std::string name;
  bool is_entry = false;
  bool is_prototype = false;         // declared, not defined
  std::vector<Variable> parameters;  // space kParam (with offsets for an entry) or kReg
  std::vector<Variable> returns;
  std::vector<Register> registers;
  std::vector<Variable> variables;  // .local, .shared, .param declared in the body
  std::vector<Instruction> code;
  uint32_t max_threads = 0;  // product of .maxntid, 0 = not given
  std::array<uint32_t, 3> required_threads{0, 0, 0};
};

struct Module {
  std::string target;  // sm_80, sm_90a, ...
  std::vector<Variable> variables;
  std::vector<Function> functions;
  std::map<uint32_t, std::string> files;
};

// Any complaint about the text: "line 12: `mma.sync...`: expected ..., got ...".
struct ParseError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Module parse_module(const std::string& text);

}  // namespace ptxsim
