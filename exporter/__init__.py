"""PyTorch in, ONNX bundle out. Together with the demo models' training, the only code here that imports torch."""
