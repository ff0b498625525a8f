// The words of the PTX language as enumerations: types, opcodes, modifiers, special registers.
#pragma once

#include <cstdint>

namespace ptxsim {

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

}  // namespace ptxsim
