"""docs/security.md, block by block: the tests that hold what it says.

A block is a paragraph, a point of a list or a row of a table; it is named by its first words. One
without tests promises nothing: it explains, or says what is not held.
"""

from __future__ import annotations

CLAIMS: dict[str, tuple[str, ...]] = {
    "This page states which inputs": (),
    "Untrusted model files can": (),  # the rows of the table below have the tests
    "| an artifact (`.eki`)": (
        "tests/end_to_end/test_artifact.py::test_every_proper_prefix_is_refused",
        "tests/compiler/test_executable.py::test_every_corrupted_byte_of_a_sample_is_refused",
        "tests/c/test_c_runtime.py::test_damaged_files_are_harmless",
    ),
    "| native code in an artifact": (),
    "| a region in an artifact for [another engine]": ("tests/byoc/test_from_c.py",),
    "| a model file (ONNX": (
        "tests/frontend/test_onnx_mutated.py",
        "tests/frontend/test_onnx_errors.py::test_every_prefix_of_a_model_is_refused",
        "tests/fuzz/test_fuzz_inputs.py::test_changed_inputs_are_refused_or_accepted",
    ),
    "| requests to `ekiden serve`": (
        "tests/security/test_serving.py::test_control_needs_a_token_or_to_be_allowed",
    ),
    "| sizes in a model's attributes": (
        "tests/fuzz/test_fuzz_inputs.py::test_changed_inputs_are_refused_or_accepted",
        "tests/relay/op/test_extreme_finds.py",
        "tests/relay/op/test_refused_shapes.py",
        "tests/security/test_bounded_patterns.py",
    ),
    "| messages of a session": (
        "tests/rpc/test_rpc_frames.py::test_mutated_bodies_are_parsed_or_refused",
        "tests/rpc/test_rpc_in_c.py::test_mutated_messages_pass_under_sanitizers",
    ),
    "| StableHLO's bytecode": (),  # jaxlib reads it: nothing is promised
    "| a client of a server": (),
    "| a model library (`.tar`)": ("tests/micro/test_hostile_libraries.py",),
    "| the cache (`EKIDEN_CACHE_DIR`": (
        "tests/compiler/test_cache_trust.py",
        "tests/compiler/test_cache_files.py::test_a_damaged_file_of_a_layer_is_a_miss_and_stays",
    ),
    # Memory
    "Writing to a result": (
        "tests/compiler/test_results_apart.py::test_vm_results_do_not_alias",
        "tests/compiler/test_results_apart.py::test_graph_executor_results_do_not_alias",
        "tests/compiler/test_results_apart.py::test_shared_library_results_do_not_alias",
        "tests/compiler/test_results_apart.py::test_constants_are_shared_and_read_only",
        "tests/compiler/test_results_apart.py::test_adt_fields_shared_with_arguments_are_read_only",
    ),
    "A tensor inside an argument": ("tests/c/test_vm_device.c",),
    "Memory that a caller lends": (
        "tests/runtime/test_values.py::test_a_lent_tensor_that_is_kept_gets_memory_of_its_own",
        "tests/runtime/test_values.py::test_an_array_of_a_lent_tensor_must_not_be_kept",
    ),
    # Servers
    "A server without a key": (
        "tests/rpc/test_rpc_sessions.py::test_others_may_not_connect_without_a_key",
    ),
    "The command needs `openssl`": (
        "tests/rpc/test_rpc_security.py::test_operations_work_with_the_key",
        "tests/rpc/test_rpc_security.py::test_nothing_works_without_the_key",
        "tests/rpc/test_rpc_security.py::test_a_token_of_another_channel_is_worth_nothing",
        "tests/rpc/test_rpc_security.py::test_the_servers_own_token_is_worth_nothing",
        "tests/rpc/test_rpc_security.py::test_older_tls_is_refused",
    ),
    "Before a session starts": (
        "tests/security/test_session_walls.py::test_handshakes_that_trickle_stop_no_server",
        "tests/security/test_session_walls.py::test_clients_that_say_nothing_stop_no_server",
    ),
    "Each session is a separate process": (
        "tests/security/test_session_walls.py::test_nothing_of_the_server_is_in_a_session",
        "tests/security/test_session_walls.py::test_a_session_has_not_the_key_of_its_server",
        "tests/security/test_session_walls.py"
        "::test_a_session_is_apart_from_the_terminal_of_its_server",
    ),
    "* **System calls**": (
        "tests/security/test_session_walls.py::test_the_calls_that_pass_are_those_of_the_table",
        "tests/security/test_session_walls.py::test_every_attack_from_inside_is_refused",
    ),
    "* **Files**": (
        "tests/security/test_session_walls.py::test_every_attack_from_inside_is_refused",
        "tests/rpc/test_rpc_security.py::test_session_cannot_leave_its_folder",
    ),
    "* **Namespaces**": (
        "tests/security/test_session_walls.py::test_every_attack_from_inside_is_refused",
    ),
    "* **Capabilities**": (
        "tests/security/test_session_walls.py::test_every_attack_from_inside_is_refused",
    ),
    "The server enforces `rpc.Limits`": (
        "tests/security/test_session_walls.py::test_a_session_that_fills_the_disk_is_ended",
        "tests/security/test_session_walls.py::test_a_session_has_not_more_threads_than_it_may",
        "tests/security/test_session_walls.py"
        "::test_the_servers_time_is_the_most_that_a_session_has",
        "tests/security/test_session_walls.py::test_a_session_ends_with_a_killed_server",
    ),
    "A server refuses to start": (
        "tests/security/test_session_walls.py::test_a_server_that_lacks_a_wall_refuses_to_start",
    ),
    "Devices remain usable": (
        "tests/rpc/test_rpc_devices.py::test_a_device_is_there_in_a_session",
    ),
    "`ekiden-rpc` has no TLS": (),
    "The sandbox does not hide the machine": (),
    "A proxy with `web_port`": (
        "tests/rpc/test_rpc_web.py::test_pages_of_other_origins_are_refused",
        "tests/rpc/test_rpc_web.py::test_page_with_invalid_messages_is_dropped",
        "tests/rpc/test_rpc_web.py::test_a_proxy_with_a_key_takes_no_pages",
    ),
    # Compiling
    "Compiling a model file": (
        "tests/security/test_compiling.py"
        "::test_functions_that_stand_for_too_many_nodes_are_refused",
        "tests/security/test_compiling.py::test_a_tensor_of_too_many_dimensions_is_refused",
        "tests/security/test_compiling.py::test_folding_does_not_double_without_end",
        "tests/security/test_compiling.py::test_the_limit_of_memory_holds_import_and_folding",
        "tests/security/test_compiling.py::test_constants_count_as_long_as_they_live",
        "tests/security/test_compiling.py::test_a_compilation_is_stopped_at_its_limit_of_time",
        "tests/security/test_compiling.py::test_the_environment_has_a_limit_of_time",
        "tests/runtime/test_limits.py::test_a_run_with_a_timeout",
        "tests/runtime/test_interrupts.py::test_control_c_ends_a_run",
    ),
    # Serving models
    "`ekiden serve` without options": (
        "tests/security/test_serving.py::test_an_open_server_says_what_it_opens",
        "tests/security/test_serving.py::test_control_without_a_token_is_for_loopback_alone",
    ),
    "**Pages in a browser": (
        "tests/security/test_serving.py::test_a_name_that_is_not_the_servers_is_refused",
        "tests/security/test_serving.py::test_health_is_told_by_any_name",
        "tests/security/test_serving.py::test_a_page_of_another_origin_is_refused",
        "tests/security/test_serving.py::test_a_change_of_state_says_that_it_is_json",
        "tests/security/test_serving.py::test_no_preflight_is_granted",
        "tests/security/test_serving.py::test_a_page_in_chromium_cannot_change_state",
    ),
    "**What a request can take**": (),
    "| `body_bytes`": (
        "tests/security/test_serving.py"
        "::test_the_tensors_of_a_request_have_no_more_bytes_than_a_body_may",
    ),
    "| `text_bytes`": (
        "tests/security/test_serving.py::test_a_request_to_a_model_of_text_has_a_bound_of_its_own",
    ),
    "| `grpc_bytes`": ("tests/security/test_serving.py::test_parsed_long_message_size_is_bounded",),
    "| `answer_bytes`": (
        "tests/security/test_serving.py"
        "::test_an_answer_that_would_be_too_large_is_refused_before_its_run",
    ),
    "| `held_bytes`": (
        "tests/security/test_serving.py::test_bodies_that_arrive_have_a_bound_together",
    ),
    "| `connections`": ("benchmarks/serving_load.py",),
    "A request may name each output once": (
        "tests/security/test_serving.py::test_an_output_is_not_asked_for_twice",
        "tests/security/test_serving.py::test_a_body_of_many_values_is_refused",
        "tests/security/test_serving.py::test_long_arrays_are_no_more_than_json",
        "tests/serve/test_serve_turns.py::test_loop_runs_between_the_chunks_of_a_long_message",
        "benchmarks/serving_load.py",
    ),
    "**Texts.**": (
        "tests/security/test_serving.py::test_an_answer_ends_with_its_client",
        "tests/security/test_serving.py::test_texts_that_stop_an_answer_are_short",
        "tests/security/test_bounded_patterns.py::test_a_pattern_that_is_catastrophic_is_refused",
    ),
    # Reporting
    "Report a violation": (),
}
"""First words of a block -> files and functions of tests."""
