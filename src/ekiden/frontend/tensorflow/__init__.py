"""TensorFlow: SavedModels, frozen graphs, Keras models."""
