"""The pipeline on top of fmkernels: text, z0, flow, image."""
