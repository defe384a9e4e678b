//! Calls every function of the header with wrong arguments. `arguments.c` has the rounds; the table
//! of functions comes from here.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use test_support::{root, succeed};

use crate::compiler::{Language, Under, folder, program, started_for, under_each_tool};
use crate::declared::{self, Function, Parameter};

/// Parameters that are the length of an array or a buffer.
const LENGTHS: [&str; 13] = [
    "capacity",
    "byte_len",
    "count",
    "input_count",
    "output_count",
    "nb_ranks",
    "nb_inputs",
    "nb_creators",
    "nb_messages",
    "nb_groups",
    "group_size",
    "world_size",
    "struct_size",
];

/// Pointers to several values, whatever their type.
const ARRAYS: [&str; 20] = [
    "groups",
    "communicators",
    "creators",
    "messages",
    "id",
    "names",
    "ranks",
    "input",
    "inputs",
    "output",
    "outputs",
    "plan",
    "weights",
    "bytes",
    "address",
    "received",
    "list",
    "byte_lens",
    "input_counts",
    "output_counts",
];

/// Pointers of the caller or another library. A test cannot make them.
const FOREIGN: [&str; 5] = ["callback", "user_data", "nccl_comm", "mpi_comm", "cuda_stream"];

/// The types of handles, without the `_t`.
fn types() -> Vec<String> {
    let opaque = |text: &str| Some(text.strip_prefix("typedef struct ")?.split_once(' ')?.0.to_owned());
    let opaque = |text: &str| opaque(text).filter(|_| !text.contains('{'));
    declared::declarations().iter().filter_map(|declaration| opaque(&declaration.text)).collect()
}

/// The kind and the detail of a parameter, in the terms of `arguments.c`.
fn kind(parameter: &Parameter, function: &Function) -> (&'static str, String) {
    let Parameter { c_type, name } = parameter;
    let (c_type, name) = (c_type.as_str(), name.as_str());
    let handle = types().into_iter().find(|t| c_type.starts_with(&format!("{t}_t *")));
    let is_array =
        ARRAYS.contains(&name) || (name == "dims" && function.parameters.iter().any(|p| p.name == "nb_inputs"));
    let detail = if is_array { "ARRAY" } else { "ONE" }.to_owned();
    match (c_type, handle) {
        _ if FOREIGN.contains(&name) => ("FOREIGN", "ONE".to_owned()),
        (_, Some(_)) if c_type.ends_with("*const *") => ("TENSORS", detail),
        (_, Some(handle)) if c_type.ends_with("**") => ("HANDLES", handle),
        (_, Some(handle)) => ("HANDLE", handle),
        ("const void *const *" | "void *const *", _) => ("INPUT", detail),
        ("const char *", _) => ("TEXT", "ONE".to_owned()),
        ("const char *const *", _) => ("NAMES", detail),
        ("const dcl_dims_t *", _) => ("DIMS", detail),
        ("const dcl_execution_context_options_t *", _) => ("OPTIONS", detail),
        ("const dcl_environment_config_t *", _) => ("CONFIG", detail),
        ("const dcl_bootstrap_config_t *", _) => ("BOOTSTRAP_CONFIG", detail),
        ("const dcl_plugin_t *", _) => ("PLUGIN", detail),
        ("const dcl_plugin_creator_t *", _) => ("CREATORS", detail),
        ("char *", _) => ("OUTPUT", "CHARACTERS".to_owned()),
        ("const dcl_broadcast_options_t *", _) => ("BROADCAST_OPTIONS", detail),
        ("const dcl_message_t *", _) => ("MESSAGES", detail),
        ("const dcl_communicator_options_t *", _) => ("COMMUNICATOR_OPTIONS", detail),
        ("const dcl_dict_tensor_t *", _) => ("DICT_TENSOR", detail),
        ("dcl_communicator_options_t *" | "dcl_environment_info_t *" | "dcl_dict_tensor_t *", _)
            if !function.name.ends_with("_init") =>
        {
            ("STRUCTURE", format!("sizeof({})", c_type.trim_end_matches(" *")))
        }
        ("void *" | "const void *", _) if name == "buffer" && function.parameters.iter().any(|p| p.name == "tag") => {
            (if c_type == "void *" { "OUTPUT" } else { "INPUT" }, "ARRAY".to_owned())
        }
        ("void *", _) if name == "buffer" => ("OUTPUT", "ARRAY".to_owned()),
        _ if c_type.ends_with('*') && c_type.starts_with("const") => ("INPUT", detail),
        _ if c_type.ends_with('*') => ("OUTPUT", detail),
        _ => {
            let bits = match c_type {
                "size_t" | "uint64_t" => "64",
                "int64_t" => "-64",
                _ => "-32",
            };
            (if LENGTHS.contains(&name) { "LENGTH" } else { "NUMBER" }, bits.to_owned())
        }
    }
}

/// The functions, as a table in C.
fn table() -> String {
    let mut calls = String::new();
    let mut rows = String::new();
    let functions = declared::functions();
    for function in &functions {
        let Function { name, returns, parameters, comment } = function;
        let cast = |(i, parameter): (usize, &Parameter)| match parameter.c_type.as_str() {
            c_type if c_type.ends_with('*') || c_type.ends_with("callback_t") => {
                format!("({c_type})(uintptr_t)arguments[{i}]")
            }
            c_type => format!("({c_type})arguments[{i}]"),
        };
        let arguments: Vec<String> = parameters.iter().enumerate().map(cast).collect();
        let through = if returns.ends_with('*') { "(uintptr_t)" } else { "" };
        let call = format!("(uint64_t){through}{name}({})", arguments.join(", "));
        let unused = if parameters.is_empty() { "(void)arguments; " } else { "" };
        writeln!(calls, "static uint64_t call_{name}(const uint64_t *arguments) {{ {unused}return {call}; }}")
            .expect("text");
        let described = parameters.iter().map(|parameter| {
            let (kind, detail) = kind(parameter, function);
            format!("{{\"{}\", {kind}, {detail}}}", parameter.name)
        });
        let described: Vec<String> = described.collect();
        let returns_status = i32::from(returns == "dcl_status_t");
        let is_exclusive = i32::from(comment.as_ref().is_some_and(|comment| comment.ends_with("exclusive]")));
        let described = if described.is_empty() { "{NULL, NUMBER, 0}".to_owned() } else { described.join(", ") };
        let count = parameters.len();
        let row = format!("\"{name}\", call_{name}, {returns_status}, {is_exclusive}, {count}, {{{described}}}");
        writeln!(rows, "    {{{row}}},").expect("text");
    }
    let types = types().join(", ");
    format!("enum {{ {types}, NB_TYPES }};\n\n{calls}\nstatic const struct function FUNCTIONS[] = {{\n{rows}}};\n")
}

/// The folder of the table, which is written once.
fn table_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = folder("arguments");
        fs::write(folder.join("functions.inc"), table()).expect("a file");
        folder
    })
}

/// Runs a round.
fn round(name: &str, under: Under) {
    let source = root().join("bindings/capi/tests/c_abi/arguments.c");
    let Some(program) = program(Language::C, &source, under, &[table_folder()]) else { return };
    let Some(mut command) = started_for(30, &program, under) else { return };
    eprintln!("{}", succeed(command.arg(name)));
}

under_each_tool! {
    zeros: |under| round("zeros", under),
    handles: |under| round("handles", under),
    pointers: |under| round("pointers", under),
    numbers: |under| round("numbers", under),
    lengths: |under| round("lengths", under),
    buffers: |under| round("buffers", under),
}
