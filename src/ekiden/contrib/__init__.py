"""What TVM's users look for under `contrib`: the graph executor and its debugger."""
