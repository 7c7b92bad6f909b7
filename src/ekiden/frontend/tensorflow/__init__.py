"""TensorFlow frontend: SavedModels, frozen graphs, Keras models."""
