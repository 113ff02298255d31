"""LGIP on ONNX Runtime: perturbation tables, scores, profiles and parity. Imports no torch, no hub client."""

__version__ = "0.1.0"
