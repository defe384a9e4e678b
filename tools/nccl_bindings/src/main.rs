//! Makes `src/comm/nccl/bindings.rs` from NCCL's header, which the PyPI package nvidia-nccl-cu13
//! has in `nvidia/nccl/include`:
//!
//! ```text
//! cargo run --manifest-path tools/nccl_bindings/Cargo.toml -- nccl.h > src/comm/nccl/bindings.rs
//! ```
//!
//! It needs libclang, in a standard place or where the environment variable `LIBCLANG_PATH` says.
//! `.ci/run` makes the bindings again, and fails if they differ from the committed file.

use std::error::Error;
use std::io::Write;

/// The functions that the NCCL backend calls. Any of them may be absent from the library at run
/// time.
const FUNCTIONS: &[&str] = &[
    "ncclGetVersion",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclGetUniqueId",
    "ncclCommInitRankConfig",
    "ncclCommGetAsyncError",
    "ncclCommSplit",
    "ncclCommCount",
    "ncclCommUserRank",
    "ncclCommCuDevice",
    "ncclCommFinalize",
    "ncclCommDestroy",
    "ncclCommAbort",
    "ncclCommRevoke",
    "ncclMemAlloc",
    "ncclMemFree",
    "ncclCommWindowRegister",
    "ncclCommWindowDeregister",
    "ncclRedOpCreatePreMulSum",
    "ncclAllReduce",
    "ncclAllGather",
    "ncclBroadcast",
    "ncclReduce",
    "ncclReduceScatter",
    "ncclAlltoAll",
    "ncclGather",
    "ncclScatter",
    "ncclSend",
    "ncclRecv",
    "ncclGroupStart",
    "ncclGroupEnd",
];

/// The declarations that NCCL's header needs of other headers. With them, neither CUDA's headers
/// nor a compiler's need to be installed.
const HEADERS: &[(&str, &str)] = &[
    ("cuda_runtime.h", "typedef __SIZE_TYPE__ size_t;\ntypedef struct CUstream_st *cudaStream_t;\n"),
    ("cuda_fp16.h", ""),
    ("limits.h", "#define INT_MIN (-__INT_MAX__ - 1)\n"),
];

/// The attributes of the generated file.
const LINTS: &str = r#"#![allow(
    missing_docs,
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unused_qualifications,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "the names are NCCL's and the code is bindgen's: nobody edits it"
)]"#;

fn main() -> Result<(), Box<dyn Error>> {
    let header = std::env::args().nth(1).ok_or("give the path of nccl.h")?;
    let headers = std::env::temp_dir().join(format!("nccl_bindings-{}", std::process::id()));
    std::fs::create_dir_all(&headers)?;
    for (name, text) in HEADERS {
        std::fs::write(headers.join(name), text)?;
    }
    let builder = bindgen::builder()
        .header(&header)
        .clang_arg(format!("-I{}", headers.display()))
        .dynamic_library_name("Nccl")
        .dynamic_link_require_all(false)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .wrap_unsafe_ops(true)
        .generate_comments(false)
        .layout_tests(true)
        .allowlist_recursively(true)
        .allowlist_var("NCCL_(VERSION_CODE|API_MAGIC|CONFIG_UNDEF_INT|SPLIT_NOCOLOR|WIN_COLL_SYMMETRIC|WIN_REQUIRED_ALIGNMENT|REVOKE_DEFAULT|UNIQUE_ID_BYTES)")
        .allowlist_type("ncclConfig_t")
        .raw_line("//! NCCL's C interface, made by `tools/nccl_bindings` from NCCL's header. Not to be edited.")
        .raw_line(LINTS);
    let builder = FUNCTIONS.iter().fold(builder, |builder, function| builder.allowlist_function(function));
    let bindings = builder.generate();
    std::fs::remove_dir_all(&headers)?;
    std::io::stdout().write_all(bindings?.to_string().as_bytes())?;
    Ok(())
}
