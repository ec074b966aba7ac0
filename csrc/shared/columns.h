// The columns of every block of statistics an op returns, one place for CPU, CUDA and the reader.
// fmkernels/ops reads them in this order.
#pragma once

namespace fmk {

// velocity_stats, flow_loss: (B, 9) per-sample sums.
enum VelocityColumn {
  kSquaredError,   // sum (v_pred - v_target)^2
  kSquaredPred,    // sum v_pred^2
  kSquaredTarget,  // sum v_target^2
  kDot,            // sum v_pred * v_target
  kAbsPred,        // sum |v_pred|
  kAbsTarget,      // sum |v_target|
  kMaxPred,        // max |v_pred|
  kMaxTarget,      // max |v_target|
  kNonfinite,      // elements where either is infinite or NaN
  kVelocityColumns
};

// step_: (B, 5), what the step line prints.
enum StepColumn { kMeanAbsX, kMeanAbsV, kRmsDelta, kStepNonfinite, kDt, kStepColumns };

// reparameterize: (11,) over the whole batch.
enum HeadColumn {
  kMuAbsMean,
  kMuRms,
  kLogvarMean,
  kStdMean,
  kStdMin,
  kStdMax,
  kZMean,
  kZVar,
  kZStdPerDimMean,
  kClampedFraction,
  kHeadNonfinite,
  kHeadColumns
};

}  // namespace fmk
