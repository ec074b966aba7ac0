"""diffusers' flow-matching Euler scheduler with an fp32 state, for any pipeline that uses diffusers' own."""

from typing import NamedTuple

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteSchedulerOutput
from diffusers.schedulers.scheduling_utils import SchedulerMixin  # noqa: F401 DiffusionPipeline.from_pretrained asks
from torch import Tensor

import fmkernels
from fmkernels.flow import Trace
from fmkernels.flow.trace import COLUMNS


class _State(NamedTuple):
    """x: the state before step ``index``. low: what the caller got of it, untouched while at ``version``."""

    x: Tensor
    low: Tensor
    version: int
    index: int


class FlowEulerScheduler(FlowMatchEulerDiscreteScheduler):
    """``x += (sigma_next - sigma) * v`` on an fp32 x (fp64 for fp64 samples) that the scheduler keeps between steps.

    Configuration, ``set_timesteps``, ``scale_noise`` and all else are :class:`FlowMatchEulerDiscreteScheduler`'s::

        pipe.scheduler = FlowEulerScheduler.from_config(pipe.scheduler.config)
        image = pipe(prompt).images[0]
        print(*pipe.scheduler.trace.lines(), sep="\\n")  # step0: |x|=0.7889, |v|=0.4671, dt=-0.0200

    diffusers' scheduler rounds dt v and the state to the model's dtype at every step. Here the caller gets a rounded
    copy, a new tensor each time, and the next step continues from the unrounded state. If the sample that is passed in
    was changed (by a callback or an inpainting mask), the changed elements are used; the others keep their fp32 value.
    Changes are detected by identity and version of the tensor, or by a comparison on the device, without reading back
    to the host. Changes that autograd does not track (``.data``, a numpy view) are not detected. ``set_timesteps``, or
    a step that does not follow the last one, drops the state; so does the last step.

    ``DiffusionPipeline.from_pretrained`` finds the class in a saved pipeline once ``fmpipe.scheduler`` is imported.

    With ``per_token_timesteps``, ``stochastic_sampling`` or gradients, diffusers' own step runs: no fp32 state, no row
    in the trace.
    """

    _compatibles = ["FlowMatchEulerDiscreteScheduler"]  # noqa: RUF012 as diffusers has it
    _state: _State | None = None
    _trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        """The trace of the steps since ``set_timesteps``, numbered by their index in the schedule; t is sigma."""
        if self._trace is None or (self._step_index is None and len(self._trace)):
            self._trace = Trace()
        return self._trace

    def step(
        self,
        model_output: Tensor,
        timestep: float | Tensor,
        sample: Tensor,
        s_churn: float = 0.0,
        s_tmin: float = 0.0,
        s_tmax: float = float("inf"),
        s_noise: float = 1.0,
        generator: torch.Generator | None = None,
        per_token_timesteps: Tensor | None = None,
        return_dict: bool = True,
    ) -> FlowMatchEulerDiscreteSchedulerOutput | tuple[Tensor]:
        """``prev_sample``, in model_output's dtype, one step after sample; a 1-tuple with ``return_dict=False``.

        model_output: the velocity, of sample's shape and on its device, (B, ...). timestep: one of ``timesteps``; it
        chooses the first step, unless ``set_begin_index`` did, and the others follow. The other arguments are those of
        diffusers, which ignores ``s_*``. Raises RuntimeError before ``set_timesteps``, IndexError after the last step.
        """
        if getattr(self, "num_inference_steps", None) is None:
            raise RuntimeError("FlowEulerScheduler.step: there is no schedule yet; call set_timesteps(...) first")
        if isinstance(timestep, (int, torch.IntTensor, torch.LongTensor)):
            raise ValueError(
                "FlowEulerScheduler.step: timestep must be one of scheduler.timesteps, which are floating point, "
                f"got {timestep!r}; is it an index?"
            )
        for name, value in (("model_output", model_output), ("sample", sample)):
            if not isinstance(value, Tensor):
                raise TypeError(f"FlowEulerScheduler.step: {name} must be a tensor, got {type(value).__name__}")
        if self._step_index is None:
            self._state, self._trace = None, Trace()
            self._init_step_index(timestep)
        if self._step_index + 1 >= len(self.sigmas):
            steps = len(self.sigmas) - 1
            raise IndexError(f"FlowEulerScheduler.step: all {steps} steps are done; call set_timesteps(...) again")
        gradients = torch.is_grad_enabled() and (model_output.requires_grad or sample.requires_grad)
        if per_token_timesteps is not None or self.config.get("stochastic_sampling") or gradients:
            self._state = None
            churn = (s_churn, s_tmin, s_tmax, s_noise)
            return super().step(model_output, timestep, sample, *churn, generator, per_token_timesteps, return_dict)
        for name, got, expected in (
            ("shape", tuple(model_output.shape), tuple(sample.shape)),
            ("device", model_output.device, sample.device),
        ):
            if got != expected:
                raise ValueError(
                    f"FlowEulerScheduler.step: model_output must have sample's {name} {expected}, got {got}"
                )
        # A tensor made in inference mode has no version, and could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            prev_sample = self._advance(model_output, self._continued(sample))
        if not return_dict:
            return (prev_sample,)
        return FlowMatchEulerDiscreteSchedulerOutput(prev_sample=prev_sample)

    def _continued(self, sample: Tensor) -> Tensor:
        """Return the fp32 state of ``sample``, in separate memory."""
        state = self._state
        if state is not None and state.index == self._step_index and state.low._version == state.version:
            if sample is state.low:
                return state.x
            if sample.shape == state.low.shape and sample.device == state.low.device:
                return torch.where(sample == state.low, state.x, sample)
        return sample.to(torch.promote_types(sample.dtype, torch.float32), copy=True)

    def _advance(self, v: Tensor, x: Tensor) -> Tensor:
        """Move x by the current step; return it in v's dtype."""
        index = self._step_index
        sigma, dt = self.sigmas[index], self.sigmas[index + 1] - self.sigmas[index]
        # Numbers from the host's sigmas; those on a device stay there: no synchronization.
        sigma, dt = (s.item() if s.device.type == "cpu" else s.to(x.device) for s in (sigma, dt))
        low, stats = torch.empty_like(x, dtype=v.dtype), x.new_empty(len(x), len(COLUMNS), dtype=torch.float32)
        fmkernels.euler_step_(x, v, dt, low=low, stats=stats)
        try:
            self.trace.append(index, stats, x.dtype, sigma)
        except ValueError:  # another batch size: another run
            self._trace = Trace()
            self._trace.append(index, stats, x.dtype, sigma)
        self._step_index = index + 1
        done = self._step_index + 1 >= len(self.sigmas)
        self._state = None if done else _State(x, low, low._version, self._step_index)
        return low
