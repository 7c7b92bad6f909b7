"""Neural-network computations: dense, convolution, pooling, normalisation, activations."""
