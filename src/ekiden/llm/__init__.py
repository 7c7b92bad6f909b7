"""Language models: decoders from checkpoints, with the loop that generates text."""
