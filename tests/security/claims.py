"""docs/security.md, sentence by sentence: the tests that hold what each says.

A sentence is named by its first words; in a table it is one of a row's cells behind the first. One
that promises nothing stands in REMARKS with the reason: it explains or advises, or says what is not
held.
"""

from __future__ import annotations

_CLOSING = "tests/serve/test_serve_connection_closing.py"
_SERVING = "tests/security/test_serving.py"
_COMPILING = "tests/security/test_compiling.py"
_WALLS = "tests/security/test_session_walls.py"
_RPC_SECURITY = "tests/rpc/test_rpc_security.py"
_SESSIONS = "tests/rpc/test_rpc_sessions.py"
_IN_C = "tests/rpc/test_rpc_in_c.py"
_TRUST = "tests/compiler/test_cache_trust.py"
_CACHE = "tests/compiler/test_cache_files.py"
_APART = "tests/compiler/test_result_aliasing.py"
_BOUNDS = "tests/serve/test_serve_bounds.py"
_ATTACKS = f"{_WALLS}::test_every_attack_from_inside_is_refused"
_CALLS = f"{_WALLS}::test_calls_that_pass_are_those_of_the_table"
_FUZZ = "tests/fuzz/test_fuzz_inputs.py::test_changed_inputs_are_refused_or_accepted"
_CODE = f"{_COMPILING}::test_model_file_executes_no_code"

CLAIMS: dict[str, tuple[str, ...]] = {
    "Untrusted model files can": (
        _CODE, f"{_COMPILING}::test_limit_of_memory_holds_import_and_folding", _FUZZ,
    ),
    "Exception: pickled PyTorch models are": (
        "tests/llm/test_torch_files.py::test_non_tensors_are_refused",
    ),
    # The table of inputs.
    "Nothing: the loader checks all": (
        "tests/end_to_end/test_artifact.py::test_every_proper_prefix_is_refused",
        "tests/compiler/test_executable.py::test_every_corrupted_byte_of_a_sample_is_refused",
        "tests/c/test_c_runtime.py::test_damaged_files_do_not_crash",
    ),
    "The wrapper library (`libekiden_NAME.so`": (
        "tests/byoc/test_engines_in_c.py::test_no_file_is_opened_by_a_name_that_leads_out_of_a_folder",
    ),
    "It can consume time and memory": (
        "tests/frontend/test_onnx_mutated.py",
        "tests/frontend/test_onnx_errors.py::test_every_prefix_of_a_model_is_refused",
        _FUZZ,
    ),
    "It cannot execute code": (_CODE,),
    "They reach jaxlib's reader": (
        "tests/frontend/test_stablehlo.py::test_text_and_bytecode_of_any_kind_are_programs",
    ),
    "It computes a text from the messages": (
        "tests/llm/test_template_limits.py::test_attributes_of_python_objects_are_undefined",
        "tests/llm/test_template_limits.py::test_template_reads_no_files",
    ),
    "A template that takes more than": (
        "tests/llm/test_template_limits.py::test_steps_of_a_template_are_bounded",
        "tests/llm/test_template_limits.py::test_bytes_of_a_template_are_bounded",
        "tests/llm/test_template_limits.py::test_values_that_a_template_cannot_have_are_refused",
        "tests/llm/test_template_limits.py::test_limits_are_those_of_the_page",
    ),
    "Its files stay below the project's": (
        "tests/micro/test_hostile_libraries.py::test_unexpected_archive_files_are_refused",
        "tests/micro/test_hostile_libraries.py::test_metadata_that_is_wrong_is_refused",
    ),
    "They run models, within the limits": (f"{_SERVING}::test_body_of_many_values_is_refused",),
    "Changing the server needs a token": (
        f"{_SERVING}::test_control_requires_token_or_permission",
    ),
    "Nothing: the compiler computes shapes": (
        _FUZZ, "tests/relay/op/test_extreme_attributes.py", "tests/relay/op/test_refused_shapes.py",
        "tests/security/test_bounded_patterns.py",
    ),
    "Kernels that compute sizes at run": ("tests/backend/test_size_overflow.py",),
    "A fuzzer tries extreme attributes": (_FUZZ,),
    "Nothing: every frame is checked": (
        "tests/rpc/test_rpc_frames.py::test_mutated_bodies_are_parsed_or_refused",
        f"{_IN_C}::test_mutated_messages_pass_under_sanitizers",
    ),
    "The cache holds native code": (
        "tests/llm/test_prompt_cache.py::test_two_processes_share_the_pages_of_a_prompt",
    ),
    "Ekiden reads a file if it and": (
        f"{_TRUST}::test_kernel_that_others_may_write_is_a_miss",
        f"{_TRUST}::test_kernel_in_a_folder_that_others_may_write_is_a_miss",
        f"{_TRUST}::test_kernel_of_another_user_is_a_miss_unless_the_layer_is_theirs",
    ),
    "A link counts as a file": (
        f"{_TRUST}::test_link_of_another_user_is_neither_read_nor_emptied",
        "tests/llm/test_prompt_cache.py::test_cache_that_another_user_planted_changes_no_files",
    ),
    "Any other file is a miss": (
        f"{_TRUST}::test_ownership_error_names_the_owner",
        f"{_TRUST}::test_artifact_that_others_may_write_is_compiled_again",
        f"{_CACHE}::test_damaged_file_of_a_layer_is_a_miss_and_stays",
    ),
    "Only the owner can change the files": (
        f"{_TRUST}::test_without_a_umask_nobody_else_may_write_to_the_cache",
        f"{_TRUST}::test_without_a_umask_what_is_saved_is_not_for_all_to_write",
    ),
    "Whoever made an archive for": (
        f"{_CACHE}::test_non_cache_files_are_not_imported",
        f"{_CACHE}::test_other_files_are_refused",
    ),
    # Memory
    "Writing to a result changes no": (
        f"{_APART}::test_vm_results_do_not_alias",
        f"{_APART}::test_graph_executor_results_do_not_alias",
        f"{_APART}::test_shared_library_results_do_not_alias",
    ),
    "A result that would alias": (f"{_APART}::test_multiply_referenced_fields_stay_correct",),
    "Constants are mapped from their file": (
        f"{_APART}::test_constants_are_shared_and_read_only",
        f"{_APART}::test_adt_fields_shared_with_arguments_are_read_only",
        "tests/bindings/test_bindings.py",
    ),
    "A tensor inside an argument": ("tests/c/test_vm_device.c",),
    "The content of a reference": ("tests/c/test_vm_device.c",),
    "A program of several devices checks": ("tests/c/test_vm_device.c",),
    "Memory that a caller lends": (
        "tests/runtime/test_values.py::test_retained_borrowed_tensor_is_copied",
        "tests/runtime/test_values.py::test_array_of_borrowed_tensor_must_not_be_retained",
    ),
    "In Java, using a closed arena": ("bindings/java/test/dev/ekiden/Check.java",),
    # Servers
    "A server without a key listens": (
        f"{_SESSIONS}::test_remote_hosts_need_a_key",
    ),
    "Give the file to both sides": (
        f"{_RPC_SECURITY}::test_operations_work_with_the_key",
        f"{_RPC_SECURITY}::test_older_tls_is_refused",
    ),
    "Each side presents the certificate": (
        f"{_RPC_SECURITY}::test_operations_fail_without_the_key",
        f"{_RPC_SECURITY}::test_token_of_another_channel_is_refused",
        f"{_RPC_SECURITY}::test_server_token_is_refused_from_clients",
    ),
    "Ekiden reads the file only if nobody": (
        f"{_RPC_SECURITY}::test_key_files_are_private_and_validated",
    ),
    "Before a session starts": (
        f"{_WALLS}::test_slow_handshakes_do_not_block_server",
        f"{_WALLS}::test_silent_clients_do_not_block_server",
    ),
    "Sixteen or a thousand connections": (
        f"{_WALLS}::test_slow_handshakes_do_not_block_server",
        "tests/rpc/test_rpc_frames.py::test_silent_clients_do_not_block_others",
    ),
    "Each session is a separate process": (
        "tests/rpc/test_rpc_spawn.py::test_server_and_its_sessions_are_no_forks",
    ),
    "It shares no memory with the server": (
        f"{_WALLS}::test_session_contains_no_server_state",
        f"{_WALLS}::test_session_has_not_the_key_of_its_server",
    ),
    "The process leads its own session": (
        f"{_WALLS}::test_session_is_apart_from_the_terminal_of_its_server",
        f"{_WALLS}::test_session_has_no_descriptor_of_its_server",
    ),
    "The servers in Python and C": (_CALLS, _ATTACKS),
    "**System calls** (seccomp)": (_CALLS,),
    "A session therefore starts no program": (
        _ATTACKS, f"{_WALLS}::test_session_ends_with_a_killed_server",
    ),
    "**Files** (landlock": (_ATTACKS, f"{_RPC_SECURITY}::test_session_cannot_leave_its_folder"),
    "**Namespaces** of users": (_ATTACKS,),
    "Without namespaces, as in many": (_ATTACKS,),
    "**Capabilities**": (_ATTACKS,),
    "The server enforces `rpc.Limits`": (
        f"{_WALLS}::test_session_that_fills_the_disk_is_ended",
        f"{_WALLS}::test_session_thread_count_is_limited",
        f"{_WALLS}::test_servers_time_is_the_most_that_a_session_has",
    ),
    "A client may request fewer seconds": (
        f"{_SESSIONS}::test_session_time_limit_is_enforced",
        f"{_WALLS}::test_servers_time_is_the_most_that_a_session_has",
    ),
    "A session that exceeds a limit": (
        f"{_WALLS}::test_session_that_fills_the_disk_is_ended",
        f"{_IN_C}::test_spinning_function_ends_with_its_client",
        f"{_SESSIONS}::test_running_function_stops_when_client_disconnects",
    ),
    "All sessions end with their server": (
        f"{_WALLS}::test_session_ends_with_a_killed_server",
        "tests/rpc/test_rpc_stale_folders.py::test_server_removes_what_a_killed_one_left",
    ),
    "`ekiden-rpc` uses the default limits": (f"{_IN_C}::test_session_in_c_has_its_time",),
    "A server refuses to start": (
        f"{_WALLS}::test_server_without_sandbox_facility_refuses_to_start",
    ),
    "`sandbox=False` (`--no-sandbox`)": (
        "tests/rpc/test_rpc_cross_architecture.py::test_verify_on_another_processor",
    ),
    "To test a server as on an older": (_ATTACKS,),
    "Devices remain usable": (
        "tests/rpc/test_rpc_devices.py::test_session_has_its_device",
    ),
    "If a driver's compiler starts": (
        "tests/rpc/test_rpc_devices.py::test_session_has_its_device",
    ),
    "It listens on the loopback interface": (
        f"{_WALLS}::test_server_in_c_listens_on_the_loopback_interface_alone",
    ),
    "`tests/security` tries these promises": (_ATTACKS,),
    "A proxy with `web_port`": (
        "tests/rpc/test_rpc_web.py::test_pages_of_other_origins_are_refused",
    ),
    "A page is never a client": (
        "tests/rpc/test_rpc_web.py::test_proxy_with_a_key_takes_no_pages",
    ),
    "Messages are checked like all": (
        "tests/rpc/test_rpc_web.py::test_page_with_invalid_messages_is_dropped",
    ),
    # Compiling
    "The compiler expands functions": (
        f"{_COMPILING}::test_functions_that_stand_for_too_many_nodes_are_refused",
        f"{_COMPILING}::test_tensor_of_too_many_dimensions_is_refused",
        f"{_COMPILING}::test_folding_does_not_double_without_end",
    ),
    "`EKIDEN_MEMORY_LIMIT=2G` bounds": (
        f"{_COMPILING}::test_limit_of_memory_holds_import_and_folding",
        f"{_COMPILING}::test_constants_count_as_long_as_they_live",
    ),
    "Beyond the limit a compilation raises": (
        f"{_COMPILING}::test_folding_beyond_the_limit_is_refused_before_it_is_computed",
        f"{_COMPILING}::test_memory_limit_that_a_node_reaches_is_no_fault_of_the_model",
    ),
    "`ekiden.compile(model, timeout=60)`": (
        f"{_COMPILING}::test_compilation_is_stopped_at_its_limit_of_time",
        f"{_COMPILING}::test_environment_has_a_limit_of_time",
    ),
    "Runs have limits of their own": (
        "tests/runtime/test_run_limits.py::test_run_with_a_timeout",
        "tests/runtime/test_interrupts.py::test_control_c_ends_a_run",
    ),
    # Serving models
    "`ekiden serve` without options": (
        f"{_SERVING}::test_server_without_options_is_this_machines",
    ),
    "Any other address needs tokens": (
        f"{_SERVING}::test_server_without_options_is_this_machines",
    ),
    "With `--open` the log states": (f"{_SERVING}::test_open_server_warns_of_exposure",),
    "Loading and unloading always need": (
        f"{_SERVING}::test_control_without_token_is_loopback_only",
        f"{_SERVING}::test_control_requires_token_or_permission",
    ),
    "**Pages in a browser of this": (f"{_SERVING}::test_page_in_chromium_cannot_change_state",),
    "Without tokens, TLS or `--open`": (
        f"{_SERVING}::test_foreign_host_header_is_refused",
        f"{_SERVING}::test_health_endpoint_accepts_any_host",
    ),
    "A page's own host name": (f"{_SERVING}::test_foreign_host_header_is_refused",),
    "The server refuses a request whose": (
        f"{_SERVING}::test_page_of_another_origin_is_refused",
        f"{_SERVING}::test_request_without_origin_needs_fetch_metadata",
        f"{_SERVING}::test_image_of_a_page_loads_no_model_on_demand",
    ),
    "Requests that change state must be": (
        f"{_SERVING}::test_state_changes_require_json_content_type",
        f"{_SERVING}::test_no_preflight_is_granted",
    ),
    "64 MB a request body, and its": (
        f"{_SERVING}::test_tensors_of_a_request_have_no_more_bytes_than_a_body_may",
    ),
    "8 MB a request body for a text": (
        f"{_SERVING}::test_request_to_a_model_of_text_has_a_bound_of_its_own",
    ),
    "8 MB a message over gRPC": (f"{_SERVING}::test_parsed_long_message_size_is_bounded",),
    "64 MB the tensors of a response": (
        f"{_SERVING}::test_oversized_response_is_refused_before_the_run",
    ),
    "1 GB all HTTP bodies": (f"{_SERVING}::test_total_size_of_incoming_bodies_is_bounded",),
    "16384, 30, 75 connections": (
        f"{_BOUNDS}::test_stalled_body_is_timed_out",
        f"{_BOUNDS}::test_missing_headers_are_timed_out",
        f"{_BOUNDS}::test_slow_headers_are_timed_out",
        f"{_BOUNDS}::test_unread_answer_is_timed_out",
    ),
    "A request may name each output": (f"{_SERVING}::test_duplicate_requested_output_is_refused",),
    "JSON may have 64 levels": (
        f"{_SERVING}::test_body_of_many_values_is_refused",
        f"{_SERVING}::test_bounds_of_json_are_those_of_the_page",
    ),
    "Long bodies are checked before": (f"{_SERVING}::test_long_arrays_are_no_more_than_json",),
    "A compressed body is decompressed": (
        f"{_SERVING}::test_loop_runs_between_the_steps_of_a_compressed_body",
        "tests/serve/test_serve_http.py::test_bad_compressed_bodies_are_refused",
    ),
    "Separate threads read and write": (
        "tests/serve/test_serve_event_loop.py::test_loop_runs_between_the_chunks_of_a_long_message",
        "tests/serve/test_serve_event_loop.py::test_reader_threads_yield_to_the_event_loop",
    ),
    "A body and its tensors take": (
        "tests/serve/test_serve_event_loop.py"
        "::test_parsing_a_long_body_takes_no_more_than_its_tensors",
        "benchmarks/serving_load.py",
    ),
    "However many clients send and receive": (
        "tests/serve/test_serve_shares.py"
        "::test_bodies_beyond_the_share_of_an_iteration_wait_for_their_turns",
        "tests/serve/test_serve_shares.py::test_bodies_that_begin_at_once_are_parsed_in_turn",
        "tests/serve/test_serve_event_loop.py::test_bodies_of_a_server_grow_without_copies",
        "tests/serve/test_serve_shares.py::test_long_responses_are_sent_in_turn",
    ),
    "Of the requests that a client sends ahead": (
        "tests/serve/test_serve_shares.py"
        "::test_requests_behind_others_are_parsed_as_those_are_answered",
        "tests/serve/test_serve_shares.py::test_chunked_body_is_parsed_in_pieces",
    ),
    "If many clients disconnect": (
        f"{_CLOSING}::test_loop_iteration_closes_a_bounded_number_of_connections",
    ),
    "**Texts.** One loop owns": ("tests/llm/test_engine_loop.py",),
    "A text that waits for a slot": (
        f"{_SERVING}::test_generation_ends_when_client_disconnects",
        f"{_SERVING}::test_request_of_disconnected_client_is_not_run",
        "tests/llm/test_engine_loop.py",
    ),
    "Stop strings have at most": (
        f"{_SERVING}::test_stop_strings_are_bounded",
        "tests/security/test_bounded_patterns.py::test_pattern_that_is_catastrophic_is_refused",
    ),
}  # fmt: skip
"""First words of a sentence -> files and functions of tests."""

_EXPLAINS, _ADVISES, _NOT_HELD = "explains", "advises", "says what is not held"
REMARKS: dict[str, str] = {
    "This page states which inputs": _EXPLAINS,
    "[The threat model](threat-model.md) lists": _EXPLAINS,
    "Everything that the process may do": _NOT_HELD,
    "Load untrusted code in a sandbox": _ADVISES,
    "It reaches that engine": _NOT_HELD,
    "Trust such regions as native": _ADVISES,
    "Load untrusted ones in a sandbox": _ADVISES,
    "The project compiles its C code": _NOT_HELD,
    "Everything that a session may do": _EXPLAINS,
    "C code receives addresses": _NOT_HELD,
    "To listen elsewhere, generate": _EXPLAINS,
    "The command needs `openssl`": _EXPLAINS,
    "Whoever has the file may connect": _NOT_HELD,
    "The sandbox supports x86-64": "one processor runs the tests; the other filters are compiled",
    "`ekiden-rpc` has no TLS": _NOT_HELD,
    "Reach it over a network": _ADVISES,
    "The sandbox does not hide": _NOT_HELD,
    "It does not protect against flaws": _NOT_HELD,
    "Run untrusted code on a machine": _ADVISES,
    "(A browser states the origin": _NOT_HELD,
    "Compiling a model file takes": _EXPLAINS,
    "Mapped files and the compiler's": _NOT_HELD,
    "**What a request can take**": _EXPLAINS,
    "[benchmarks/serving_load.py]": _EXPLAINS,
    "These bounds exclude text models": _NOT_HELD,
    "Report a violation of these": _ADVISES,
}
"""First words of a sentence that promises nothing -> why."""
