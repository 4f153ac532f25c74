"""The FPGA flow: fused rounds in C-simulation, RTL, synthesis, simulation, and the race."""
