"""The report's sentences in English, by key; :mod:`.zh` has the same keys. Numbers go in by name."""

TEXTS = {
    # hypotheses: what is supposed, and the rule
    "input_range/title": "The input has a wrong range",
    "input_range/rule": "latents: |median mean| at most {input/mean:g}, median std from {input/std_low:g} to "
    "{input/std_high:g}; pictures: in [-1, 1]; nothing NaN or infinite",
    "time_sampling/title": "Times are drawn unevenly",
    "time_sampling/rule": "mean and std of t within {time/mean:g} of what the config's kind has (without a config "
    "uniform or logit-normal; steps 0 to 999: 499.5 and 288.7), beside four standard errors",
    "forward_process/title": "x_t is made wrongly",
    "forward_process/rule": "a diffusion's noise has mean 0 and std 1 (±{forward/mean:g}, ±{forward/std:g}); |x_t| at "
    "most {forward/reach:g} times its ends; its std within {forward/misfit:.0%} of what the ends and t give",
    "model_output/title": "The model's output is off",
    "model_output/rule": "nothing NaN or infinite; std of the prediction ends from {output/low:g} to {output/high:g} "
    "times its target's, or comes nearer to it",
    "loss_numerics/title": "The loss is numerically unstable",
    "loss_numerics/rule": "nothing NaN or infinite; last ten at most {loss/rise:g} times the first ten; at most "
    "{loss/outliers:.0%} of the last half above {loss/outlier:g} times its median",
    "schedule_constants/title": "The schedule's constants are wrong",
    "schedule_constants/rule": "betas 1e-4 to 0.02 (or Stable Diffusion's 8.5e-4 to 0.012) within "
    "{schedule/relative:.0%}; alphas_cumprod from 0.9999 to {schedule/end:g} or less; each what the others make of it",
    "gradients/title": "Gradients vanish, explode, or drown each other",
    "gradients/rule": "grad/total at most {gradient/exploding:g} times its beginning and at least "
    "{gradient/vanishing:g} of it; each loss at least {gradient/drowned:.0%} of the gradient it shares; heads move by "
    "{update/ratio:g} to {update/jump:g} of themselves a step; the teacher's entropy at least {dino/entropy:.0%} of "
    "log K",
    "condition_use/title": "The text is not used",
    "condition_use/rule": "flow/cond_gain_cos above {condition/weak:g}; cosine of different prompts below {text/cos:g}",
    "kl/title": "The posterior has collapsed or run away, or the KL is not that of mu and logvar",
    "kl/rule": "std/mean at least {kl/collapse_std:g}; logvar inside its clamp of ±6; mu/rms at most {kl/mu:g}; "
    "loss/kl = ½(E z² - 1 - E logvar) up to a constant, within {kl/formula:.0%}",
    "integration/title": "The sampler's state is lost",
    "integration/rule": "|x| moves at {trace/moves:.0%} of the steps at least and stays within {trace/far:g} times "
    "where the first velocity leads; teacher Euler at most {teacher/growth:g} times worse with more steps",
    "scale_mismatch/title": "z0 and z1 have different scales",
    "scale_mismatch/rule": "the largest of E|z0|, E|z1|, E|v*| at most {scale/ratio:g} times the smallest; std of "
    "latents from {input/std_low:g} to {input/std_high:g}",
    "train_inference/title": "Sampling does not do what training taught",
    "train_inference/rule": "endpoint error settles with K, and leaves at most {inference/left:g} of MSE(z0, z1); "
    "speed ratio from {inference/slow:g} × cos to {inference/fast:g}; Σ|dt| = 1 ± {trace/sum:g}; held-out loss at "
    "most {inference/val:g} times the training's",
    "leak/title": "z0 gives z1 away",
    "leak/rule": "a cosine of {leak/cos:g} or more comes with std/mean of at least {leak/std:g} (where it is not "
    "logged: with at most {leak/relative:g} of MSE(z0, z1) left at the end)",
    "learning_rate/title": "The learning rate is too small, too high, or restarts",
    "learning_rate/rule": "its highest value at least {lr/least:g} ({lr/small:g} if the loss is flat); no rough "
    "loss at {lr/high:g} or more; no jump by {lr/jump:g} or more that the loss does not survive",
    "loss_trend/title": "The loss does not fall, rises, or jumps",
    "loss_trend/rule": "it falls by {trend/flat:.0%} or more, ends at most {trend/rise:g} times above its lowest "
    "level, and has few values above {trend/spike:g} times its level",
    "generalization/title": "The training data are memorized",
    "generalization/rule": "the held-out loss ends at most {overfit/turn:g} times above its lowest value; the loss "
    "has no period",
    "run/title": "The run stopped itself, started again, or lost metrics",
    "run/rule": "no alarm; no return of the loss to its beginning; every metric is logged to the end; the loss "
    "scale of mixed precision keeps its size; averaged weights follow",
    "time_slices/title": "The ends of the path are learned worse than its middle",
    "time_slices/rule": "nmse near t = 0 and t = 1 at most {slices/ratio:g} times that of the middle, cos at most "
    "{slices/cos:g} below it",
    "target/title": "The network is trained toward another target than the velocity",
    "target/rule": "flow/cos above -{target/sign:g}; the velocity correlates best; |v*| keeps at least "
    "{target/moving:.0%} of its size",
    "lr/small": "The learning rate is at most {top:.3g} (median {middle:.3g}).",
    "lr/high": "At a learning rate of up to {top:.3g}, the last half of the losses spans {swing:.2g} times its median.",
    "lr/restart": "At step {step} the learning rate jumps from {low:.3g} to {high:.3g}; the loss was {before:.4g} "
    "and ends at {after:.4g}.",
    "trend/flat": "The loss goes from {first:.4g} to {last:.4g}.",
    "trend/rise": "The loss has its lowest level, {low:.4g}, at step {step} and ends at {last:.4g}.",
    "trend/jump": "At step {step} the loss jumps to another level; its lowest was {low:.4g}, it ends at {last:.4g}.",
    "trend/spikes": "{count} losses are spikes, {late} of them in the last half; the largest is {worst:.3g} times "
    "its level.",
    "overfit/turn": "{name} is best, {low:.4g}, at step {step} and ends at {last:.4g}.",
    "overfit/periodic": "The loss repeats itself every {period} values (correlation {share:.2f}).",
    "run/stopped": "The run stopped itself: {why}",
    "run/scratch": "At step {step} the loss goes from {before:.4g} back to {after:.4g}, where it began "
    "({first:.4g}), and falls again as it did then.",
    "run/lost": "No values after step {step}: {names}.",
    "run/whole": "Every metric is logged to the end.",
    "run/overflow": "The loss scale goes from {first:g} to {last:g}; {share:.0%} of the steps are skipped.",
    "run/ema": "{name} ends at {ema:.4g}, the same of the raw weights at {raw:.4g}.",
    "slices/ends": "{kind} is {end:.3g} in the time slice {slice} and {middle:.3g} in the middle.",
    "field/target": "The cosine with the velocity is {cos:.3g}.",
    "field/other": "The prediction correlates with the {name} ({other:.3g}), with the velocity {own:.3g}.",
    "field/moving": "|v*| goes from {early:.4g} to {late:.4g}.",
    "kl/prior": "mu/abs_mean is {mu:.3g} and std/mean {std:.3g}: the posterior is the prior, whatever the text.",
    "kl/drift": "mu/abs_mean goes from {first:.3g} to {mu:.3g}, z_init/var is {var:.3g}: the KL does not hold them.",
    "dino/uniform": "The teacher's entropy is {share:.1%} of log K: its targets say nothing.",
    "dino/student": "The student's entropy is {share:.1%} of log K, its gradient {grad:.1%} of all.",
    "scale/start": "|x| begins at {x:.4g} (trace {trace}); {due:.3g} is expected.",
    "scale/factor": "Latents have std {std:.3g}, {ratio:.3g} times the scale factor {factor:g} to the power {power}.",
    "scale/stds": "z0 has std {z0:.3g}, z1 {z1:.3g}: {ratio:.3g} times apart.",
    "scale/psnr": "decode(encode(x)) has {psnr:.3g} dB.",
    "text/means": "The cosine of the means of different prompts is {cos:.4g}.",
    "trace/symmetry": "The step sizes of trace {trace} begin with {first:.4g} and end with {last:.4g}.",
    # findings
    "stage": "{stage}: {said}",
    "check": "Check {check}: {meaning}",
    "check/teacher_euler_flat": "Teacher Euler is flat in the number of steps: the exact field arrives.",
    "finite": "Nothing is NaN or infinite: {names}.",
    "input/nonfinite": "{count} elements of x_0 are NaN or infinite (first step: {step}).",
    "input/pixels": "Pixels are in [{low:.3g}, {high:.3g}].",
    "input/mean": "x_0 has mean {median:.3g} (batches {low:.3g} to {high:.3g}); 0 is expected.",
    "input/std": "x_0 has std {median:.3g} (batches {low:.3g} to {high:.3g}); 1 is expected.",
    "input/range": "x_0 is in [{low:.3g}, {high:.3g}].",
    "time/range": "t is in [{low:.4g}, {high:.4g}] of 0 to {top}.",
    "time/mean": "t has mean {mean:.4g}; {kind} has {due:.4g}.",
    "time/std": "t has std {std:.4g}; {kind} has {spread:.4g}.",
    "forward/nonfinite": "{count} elements of noise or x_t are NaN or infinite (first step: {step}).",
    "forward/noise": "The noise has mean {mean:.3g} and std {std:.4g}.",
    "forward/reach": "|x_t| reaches {x_t:.3g}, its ends {ends:.3g}.",
    "forward/std": "x_t has std {std:.3g}; its ends and t give {low:.3g} to {high:.3g}.",
    "output/nonfinite": "{count} elements of the prediction are NaN or infinite (first step: {step}).",
    "output/std": "The prediction's std goes from {first:.3g} to {last:.3g}; its target has {due:.3g}.",
    "output/range": "The prediction's range goes from {first:.3g} wide to {last:.3g}.",
    "loss/stopped": "The run stopped itself: {why}",
    "loss/nonfinite": "{count} losses are NaN or infinite (first step: {step}).",
    "loss/drop": "{name} goes from {first:.4g} (first ten) to {last:.4g} (last ten), a drop of {drop:.2f} %; range "
    "[{low:.3g}, {high:.3g}].",
    "loss/outliers": "{count} of {of} values of {name} in the last half are above {times:g} times its median.",
    "schedule/betas": "betas go from {first:.4g} to {last:.4g}; {kind}: {due_first:g} to {due_last:g}.",
    "schedule/end": "alphas_cumprod goes from {first:.4g} to {last:.3g}.",
    "schedule/agree": "Constants that do not follow from the others: {names}.",
    "gradient/nonfinite": "{count} gradient norms are NaN or infinite (first step: {step}).",
    "gradient/exploding": "grad/total begins at {start:.3g} and peaks at {top:.3g} later.",
    "gradient/vanishing": "grad/total begins at {start:.3g} and ends at {end:.3g}.",
    "gradient/share": "{name} is {share:.2%} of the gradient it shares.",
    "gradient/still": "{name} is {ratio:.2g}: the head hardly moves.",
    "gradient/moves": "{name} is {ratio:.2g}.",
    "gradient/teacher": "The teacher's entropy is {share:.1%} of log K.",
    "condition/gain": "Another text's z0 costs {gain:.3f} of the cosine (at the beginning {first:.3f}).",
    "kl/std": "std/mean goes from {first:.3g} to {std:.3g}.",
    "kl/clamp": "logvar/mean is {logvar:.3g}; its clamp is ±6.",
    "kl/outside": "sigma is in [{low:.3g}, {high:.3g}]; a clamp of logvar to ±6 gives [0.0498, 20.1].",
    "kl/mu": "mu/rms goes from {first:.3g} to {mu:.3g}.",
    "kl/formula": "loss/kl is {ratio:.3g} times the KL that mu and logvar give (spread {spread:.0%}): {loss:.3g}, due "
    "{due:.3g}.",
    "trace/nonfinite": "Trace {trace}: not finite from step {step} on.",
    "trace/far": "Trace {trace}: |x| runs away from {first:.4g} to {x:.4g} at step {step}.",
    "trace/rounded": "Trace {trace}: |x| moves at {moved} of {of} steps, {first:.4f} to {last:.4f}. Its state is "
    "on the grid of {kind}, {spacing:.3g} apart there, while a step changes x by |v| dt = {least:.2g} to {most:.2g}: "
    "rounding of the state takes about {lost:.0%} of it.",
    "trace/still": "Trace {trace}: |x| moves at {moved} of {of} steps, {first:.4f} to {last:.4f}.",
    "trace/moves": "Trace {trace}: |x| moves at {moved} of {of} steps, {first:.4f} to {last:.4f}, on the grid of no "
    "half format (fp32).",
    "trace/sum": "Trace {trace}: Σ|dt| of its {n} steps is {total:.4f}.",
    "scale/latents": "z1 has std {std:.3g}; a scaled sample of the VAE has about 1.",
    "scale/norms": "E|z0| = {z0:.4g}, E|z1| = {z1:.4g}, E|v*| = {v:.4g}: {ratio:.3g} times apart.",
    "inference/steps": "Endpoint RMSE is {rmse} at K = {ks}.",
    "inference/endpoint": "{left:.2f} of MSE(z0, z1) is left at the end, at flow/nmse {nmse:.2f} and cos {cos:.2f}.",
    "inference/speed": "|v_pred| / |v*| is {ratio:.3g} at cos {cos:.3g}; fm_gain would be {gain:.3g}.",
    "inference/cos": "flow/cos has come to {cos:.3f}.",
    "inference/val": "Held-out {name} loss is {held:.4g}, {ratio:.2g} times the training's {own:.4g}.",
    "leak/cos": "cos {cos:.3g}, std/mean {std:.3g}, left of MSE(z0, z1) at the end {left:.3g}.",
    # remarks on the log
    "remark/torn": "{count} lines of {file} are torn or no JSON and are left out{last}.",
    "remark/torn_last": " (the last one: cut off while it was written)",
    "remark/words": "{count} numbers of {file} are written as text (NaN, Infinity) or as bare NaN; they are read.",
    "remark/mixed": "Lines of {file} have different figures ({count} sets of steps); each figure keeps its own steps.",
    "remark/typed": "{names}: numbers in some lines, text in others; the numbers are read.",
    "remark/names": "Metrics read under canonical names: {names}.",
    "remark/unknown": "Not recognised: {names}. Map them with --alias theirs=ours.",
    "remark/ranks": "{file} has lines of {count} processes; their metrics are averaged.",
    "remark/order": "Steps of {file} are not in order in {count} places (resumed, or several writers); they are "
    "sorted.",
    "remark/twice": "{count} steps are written twice, as by a resumed run; the last of each counts.",
    "remark/rotated": "The log is rotated: {files} are read as one.",
    "remark/stages": "The run has the stages {stages}; this report is of {stage}, the others are judged beside it.",
    "remark/no_steps": "{file} has no steps; lines are counted instead.",
    "remark/contradiction": "{name}: the stated range [{low:.3g}, {high:.3g}] contradicts its first ten ({first:.3g}) "
    "or last ten ({last:.3g}).",
    "remark/dtype": "{a} is {a_type}, {b} is {b_type}: usual in mixed precision, but compare them in float32.",
    "remark/skipped": "{file} is left out: {why}",
    # the page
    "report": "Report",
    "summary": "Summary",
    "hypotheses": "Hypotheses",
    "findings": "Findings",
    "observations": "Observations",
    "advice": "Advice",
    "log": "The log",
    "rule": "Rule",
    "traces": "Sampling traces",
    "compare": "Two runs",
    "verdict/CONFIRMED": "CONFIRMED",
    "verdict/REJECTED": "REJECTED",
    "verdict/NOT ENOUGH DATA": "NOT ENOUGH DATA",
    "healthy": "Nothing is wrong as far as this log shows: {rejected} of {all} hypotheses are rejected, {unknown} lack "
    "data.",
    "little": "Too little is logged for a verdict: only {rejected} of {all} hypotheses could be judged, and none of "
    "them is confirmed. docs/logging.md lists the metrics to log for the rest.",
    "wrong": "{confirmed} of {all} hypotheses are confirmed. Begin with {first}.",
    "follows": "follows from {causes}",
    "root": "root cause",
    "no_data": "The log has nothing to judge it by.",
    "none": "None.",
    "go_on": "Go on training. Watch the held-out loss and the samples.",
    "finding/loss": "{name}: {first:.4g} to {last:.4g} ({drop:+.1f} %) over {count:,} values.",
    "finding/finite": "All {count} figures are finite throughout.",
    "finding/nonfinite": "Not finite at some step: {names}.",
    "log/source": "source",
    "log/lines": "lines",
    "log/losses": "losses",
    "log/figures": "figures",
    "log/steps": "last step",
    "log/time": "time",
    "log/minutes": "{minutes:.1f} minutes",
    "plot/log": "log scale",
    "hover": "Hover or touch a plot to read its values.",
    # two runs
    "compare/differ": "{what}: {a} and {b}.",
    "compare/refused": "They are not ranked: figures are comparable only with the same VAE, resolution, latents and "
    "scale.",
    "compare/unknown": "Not known of both, and so not compared: {names}.",
    "compare/better": "{name}: {better} is better, {a:.4g} (A) and {b:.4g} (B).",
    "compare/equal": "{name}: no difference that counts, {a:.4g} (A) and {b:.4g} (B).",
    "compare/confirmed": "Confirmed in A: {a}; in B: {b}.",
    "compare/nothing": "They have no figure in common.",
}

ADVICE = {
    "scale/stds": "Bring both to std 1: the VAE's scale factor for z1, the KL or variance alignment for z0.",
    "lr/small": "Raise the learning rate (1e-4 is usual for AdamW), and look at the schedule: warm-up over more "
    "steps than the run has, or a scale of 0.",
    "lr/high": "Lower the learning rate by 3 to 10, or warm up longer; clip gradients at 1.",
    "lr/restart": "Restore the scheduler's state when resuming, or use one decay without restarts; continue from "
    "the checkpoint before step {step}.",
    "trend/flat": "Overfit a few samples first (fmpipe overfit). Look at the target, the learning rate, and "
    "whether gradients reach the parameters.",
    "trend/rise": "Go back to the checkpoint at step {step} and continue with a lower learning rate and gradient "
    "clipping.",
    "trend/jump": "Go back to the checkpoint before step {step}; look at that batch, clip gradients, lower the "
    "learning rate.",
    "trend/spikes": "Clip gradients at 1, lower the learning rate or AdamW's second beta, and look for broken samples.",
    "overfit/turn": "Use the checkpoint at step {step}; more data, augmentation, dropout or weight decay for a "
    "longer run.",
    "overfit/periodic": "If the period is an epoch, samples are memorized or their order is not shuffled: shuffle, "
    "add data or augmentation.",
    "run/stopped": "Fix what the alarm names, then resume from the checkpoint before it.",
    "run/scratch": "The weights were not loaded on resume: check the path and that load_state_dict is strict, then "
    "resume again.",
    "run/lost": "Look at the code that computes these metrics from that step on: an exception that is caught, or a "
    "division by 0.",
    "run/overflow": "Use bf16, or fp32 for the part that overflows; look at the first infinite gradient.",
    "run/ema": "Update the averaged weights at every step, and choose a decay for the length of the run.",
    "slices/ends": "Draw more times there (flow.losses.t: edge), weight them (edge_weight), and check the time "
    "embedding at the ends.",
    "field/target": "The target is x1 - x0 (Dt_psi), neither noise nor its negative: compare the training's "
    "formula with the sampler's.",
    "field/other": "The target is x1 - x0 (Dt_psi), not the {name}: correct the loss.",
    "field/moving": "Detach x0 and x1 in the target (fmkernels.flow_loss does), and hold z0 by the KL.",
    "kl/prior": "Lower the KL's weight, or warm it up more slowly; check that mu differs between prompts.",
    "kl/drift": "Raise the KL's weight, and compute it from mu and logvar on unscaled latents.",
    "dino/uniform": "Lower the teacher's temperature, or weaken the centering.",
    "dino/student": "Raise the student's temperature or the weight of the DINO loss.",
    "scale/start": "Compare the scale of z0 in training and in sampling: the sampler starts from another distribution.",
    "scale/factor": "Apply the VAE's scale factor exactly once: multiply in sample(), divide in decode().",
    "scale/psnr": "Check the VAE's weights (missing keys), its eval mode and the range of its input.",
    "text/means": "The text does not reach z0: check the prompt template, the mask and the head's input; lower the "
    "KL's weight.",
    "trace/symmetry": "Compare the sampler's schedule with the configured one.",
    "check": "{advice}",
    "input/nonfinite": "Look for a division by 0 or a broken file in the preprocessing.",
    "input/pixels": "Bring pictures to [-1, 1]: x / 127.5 - 1.",
    "input/mean": "Subtract the latents' mean (latents_mean) in the VAE's sample(), in that one place.",
    "input/std": "Multiply by the VAE's scale factor in sample(), once, and divide in decode(), once.",
    "time/range": "Draw t from [0, 1], or whole steps from 0 to T - 1.",
    "time/mean": "Draw t anew for every sample and look at flow.losses.t; a skewed t leaves a part of the path "
    "untaught.",
    "time/std": "Draw t for every sample, not for every batch, and look at flow.losses.t.",
    "forward/nonfinite": "Build x_t in float32 and look at the schedule's constants.",
    "forward/noise": "Draw the noise with randn_like(x_0), unscaled.",
    "forward/reach": "Look at the factors of x_t: they must be those of the path, at the sample's own t.",
    "forward/std": "Take x_t and its target from one path object, at the same t.",
    "output/nonfinite": "Run in float32 with a lower learning rate and find the first layer: "
    "torch.autograd.detect_anomaly.",
    "output/std": "Look at the last layer (still at zero?), the learning rate, and what the loss compares.",
    "loss/stopped": "Resume from the saved state with a lower learning rate, in float32.",
    "loss/nonfinite": "Go back to the checkpoint before it, lower the learning rate, clip gradients, and build x_t "
    "and the loss in float32.",
    "loss/drop": "Lower the learning rate and lengthen the warm-up.",
    "loss/outliers": "Clip the gradient, and look at the samples of those batches.",
    "schedule/betas": "Use linear betas 1e-4 to 0.02 over 1000 steps, in float64, the same for sampling.",
    "schedule/end": "The last step must be almost pure noise: look at betas and their number.",
    "schedule/agree": "Make all constants from one betas by cumprod, in float64.",
    "gradient/nonfinite": "Clip after unscaling; with fp16 use a GradScaler, or train in bf16.",
    "gradient/exploding": "Lower the learning rate, lengthen the warm-up, clip the gradient at 1.",
    "gradient/vanishing": "Look for a detach, a saturated activation or a learning rate of 0.",
    "gradient/share": "Raise the weight of {name}, or balance by gradient share (flow.losses.weighting=share).",
    "gradient/still": "Give the head 2 to 5 times the learning rate, and see that it is in the optimizer.",
    "gradient/moves": "Lower the learning rate or clip the gradient: a head that changes this much a step is thrown "
    "about.",
    "gradient/teacher": "Raise the teacher's temperature, and look at the centring.",
    "condition/gain": "Look whether captions belong to their pictures, whether the text reaches z0, and whether "
    "guidance drops it too often.",
    "kl/std": "Lower the flow's pull on sigma: start logvar near 0, warm the KL up over the first 10 %, or give the "
    "head a std_range.",
    "kl/clamp": "Start logvar near 0 and warm the KL up.",
    "kl/outside": "Clamp logvar to [-6, 6] before exp, for z and for the KL (fmkernels.reparameterize does).",
    "kl/mu": "Raise the KL's weight, set mu_rms in flow.head, or lower the learning rate: z0 runs away.",
    "kl/formula": "Compute the KL from mu and logvar, never from a sample z, on unscaled latents.",
    "trace/nonfinite": "Run the velocity in float32 and look at the step before.",
    "trace/far": "Look at dt's sign and size, fm_gain, and the scale of z0.",
    "trace/rounded": "Keep the state in float32 (the velocity may stay {kind}): fmkernels.flow.sample and euler_step_ "
    "do. More steps only make it worse.",
    "trace/still": "Look at dt and fm_gain, and whether the state is updated at all.",
    "trace/sum": "Look for a step too many or too few: dt must add up to 1 (close_ends=True for the logit-normal "
    "grid).",
    "scale/latents": "Take z1 from the VAE's sample(), not from its moments, and apply the scale factor in exactly "
    "one place.",
    "scale/norms": "Mend the scale of z1 first, then the text head's. Do not correct with a measured ratio.",
    "inference/steps": "Take x_t and v* in training and the step in sampling from one path object.",
    "inference/endpoint": "Training's target is not what the sampler integrates: look at its sign, at x1 - x0 against "
    "noise, and at alpha', beta'.",
    "inference/speed": "Sample with fm_gain = {gain:.3g} as a stopgap; in training add the norm-alignment loss and "
    "run the flow net in float32.",
    "inference/cos": "The direction is not learnt: look at target, scale and pairing, then train longer.",
    "inference/val": "Stop earlier, or take more data; look whether held-out pictures go through the same "
    "preprocessing.",
    "leak/cos": "Judge by generation. Raise the KL's weight or std_range so that sigma cannot shrink, or detach z0 "
    "from the flow loss.",
}
