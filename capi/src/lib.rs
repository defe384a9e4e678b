//! The C ABI: the functions of `include/distcollective.h`, which says what each means. A door without semantics of its own: arguments
//! are parsed, handles looked up, and everything else is a call of the Rust API.
//!
//! | module | what is there |
//! |---|---|
//! | `status` | statuses, this thread's last error, and [`call`](status::call), through which every function goes: no panic gets out |
//! | `handle` | the table behind the handles |
//! | `arguments` | the types of arguments, with the unsafe code that reads and writes what they point to |
//! | `copy_out` | text and bytes for the caller's buffers |
//! | `library` | version, names, the log |
//! | `network`, `layer`, `dist_collective` | describing a network; attributes of layers, those in no network too |
//! | `plugin` | layers of the caller's own |
//! | `engine`, `context` | building and running it |
//! | `bound_layer` | the layer by itself |
//! | `environment`, `communicator`, `collectives` | ranks |
//! | `buffer`, `stream` | memory; streams and work |

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the handles of the C ABI need pointers of 64 bits");

mod arguments;
mod bound_layer;
mod buffer;
mod collectives;
mod communicator;
mod context;
mod copy_out;
mod dist_collective;
mod engine;
mod environment;
mod handle;
mod layer;
mod library;
mod network;
mod plugin;
mod status;
mod stream;
