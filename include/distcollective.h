/* distcollective: TensorRT's DistCollective layer for engines in C and C++.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Three doors, and behind them one piece of code:
 *
 *   1. the network, for graphs, plans and memory planning:
 *      dcl_network_* -> dcl_engine_* -> dcl_execution_context_*, as TensorRT's INetworkDefinition, ICudaEngine, IExecutionContext;
 *   2. the layer by itself, for engines with a graph of their own (what an IPluginV3 needs):
 *      dcl_dist_collective_new -> dcl_dist_collective_bind -> dcl_bound_layer_enqueue;
 *   3. ranks: dcl_environment_*, dcl_communicator_*, and the collectives called eagerly with a dcl_work_t.
 *
 * What the operations mean, for shapes, types and bits, is in the README's tables; enumerators have TensorRT's numbers.
 *
 *
 * RULES FOR EVERY CALL
 *
 * Status. Functions return a dcl_status_t; 0 is success. After a failure dcl_last_error_message gives the sentence, of this thread.
 * Outputs are written only on success.
 *
 * Handles. A dcl_..._t pointer is a name for an object, not its address: it must not be dereferenced. NULL, a handle that was freed, one
 * of another type, or any other number is DCL_STATUS_INVALID_HANDLE. (A free(NULL) is a success that does nothing.) Who is given a
 * handle in an output argument owns it and frees it with the function that is named there. Objects keep alive what they need: a
 * context its engine, a work its communicator. So handles can be freed in any order, also while another thread is inside a call on
 * them; that call comes to its end.
 *
 * Data. Strings are UTF-8 and end with a NUL. What a pointer argument points to is copied, or used during the call only; what is
 * kept for longer (tensor addresses, callbacks) says so. A pointer that is needed and is NULL is DCL_STATUS_INVALID_ARGUMENT. Other
 * addresses that are not valid are the caller's to avoid. An array of length 0 may be NULL.
 *
 * Text and bytes are copied out by (buffer, capacity, length). *length is the whole length, for text without the NUL; `length` may be
 * NULL. With `buffer` NULL only *length is written. Where the capacity is too small (text needs one byte more, for the NUL) the status
 * is DCL_STATUS_BUFFER_TOO_SMALL, `buffer` is left as it was, and *length is written all the same.
 *
 * Blocking. At the end of each function's description:
 *   [local]       waits for no other rank: at most for the calling thread's own work, the operating system, the GPU's driver, or, where
 *                 that is said, a callback of the caller's;
 *   [waits]       waits for what was enqueued, no longer than its collectives' timeouts;
 *   [collective]  every rank of the communicator calls it, in the same order, each on a thread of its own, and it waits for them, no
 *                 longer than the communicator's timeout. Called for two ranks one after the other by one thread, the first
 *                 waits for the second until the timeout.
 *
 * Threads. And after that:
 *   [.., shared]     several threads may call it at once with the same handle (the first argument's);
 *   [.., exclusive]  nobody else is inside a call with that handle. If somebody is, whichever call comes second gets DCL_STATUS_BUSY, at
 *                    once, and nothing happens.
 *
 * Timeouts are in milliseconds. DCL_TIMEOUT_DEFAULT is 600 s, or the seconds that the environment variable DCL_TIMEOUT has, or where there
 * is a communicator already, its own. A timeout runs from the moment at which the call is made, also for what is enqueued.
 *
 * Order. The collective calls of one rank on one communicator run in the order in which the rank makes them, whatever streams they
 * are enqueued on: a call on the NULL stream runs after what was enqueued before. All handles on one communicator share one order.
 * Calls of several threads of a rank are ordered by the moment at which they enter the library; the caller sees to it that this
 * order is the same on every rank. A run of a context, and a bound layer, take one place, in their communicator and in all groups
 * split from it. What a plugin calls on the run's own thread belongs to that place; from another thread it comes after the run. A
 * plugin cannot enqueue work for those communicators on a worker stream: DCL_STATUS_INVALID_ARGUMENT.
 *
 * Structures begin with struct_size, the sizeof that the caller was compiled with, so that they can grow. Use the _INIT macros.
 *
 * Failure of ranks. These errors leave a communicator as it was:
 *   - what a rank finds wrong in its own arguments, before anything happens; the other ranks are not told, and wait for the right
 *     call until their timeout;
 *   - different lists in dcl_communicator_new_group, lengths in dcl_communicator_allocate, and what _set_communicator and _bind find
 *     wrong with plans and layers: there every rank gets the error.
 * After any other error in a collective its outputs are undefined, no other rank touches this rank's memory any more, and the
 * communicator, with all that was split from the same origin, is dead: further calls return at once, with an error that says why. On
 * the host, ranks whose calls differ find that out, but a rank that only gives, such as the root of a broadcast, does not wait for
 * those who take: it may learn of their error in its next call, or in dcl_communicator_finalize.
 *
 * Forks. A child that was forked from a rank's process is no rank. It may exec or exit, and free its copies of handles, which is no
 * matter to the ranks. All else on copies of communicators, worker streams and their work, and of what is on a GPU, is
 * DCL_STATUS_UNSUPPORTED. A buffer of dcl_communicator_allocate becomes the child's own when the child reads it, writes it or asks for its
 * address; an address from before the fork is the rank's memory still. Communicators that the child makes for itself are its own.
 * If other threads of the caller's were inside this library at the fork, their locks stay locked in the child, as with any library:
 * then it only execs or exits. Only fork() is noticed, not _Fork() or clone().
 *
 * On GPUs. NCCL does not compare calls: ranks whose calls differ wait until the timeout. An ncclComm_t that was lent and blocks may block
 * beyond it. What is enqueued on a CUDA stream is watched by whoever waits for it here: dcl_work_wait and dcl_stream_synchronize find a rank
 * that failed, and end at the timeout; cudaStreamSynchronize does not.
 */
#ifndef DISTCOLLECTIVE_H
#define DISTCOLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX != UINT64_MAX
#error "the C ABI of distcollective is for 64-bit processors"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------------------------
 * Values
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* The version of this header. Before 1.0 a new minor version may change the ABI; the soname therefore names both:
 * libdistcollective.so.0.1. */
#define DCL_VERSION_MAJOR 0
#define DCL_VERSION_MINOR 1
#define DCL_VERSION_PATCH 0
#define DCL_VERSION (DCL_VERSION_MAJOR * 10000 + DCL_VERSION_MINOR * 100 + DCL_VERSION_PATCH)

/* What became of a call. */
typedef int32_t dcl_status_t;
enum {
    DCL_STATUS_SUCCESS = 0,
    /* An argument is wrong by itself, whatever the network or the communicator. */
    DCL_STATUS_INVALID_ARGUMENT = 1,
    /* NULL, freed, of another type, or never a handle. */
    DCL_STATUS_INVALID_HANDLE = 2,
    /* The network, or a layer by itself, breaks one rule or more; the message lists all mistakes, one a line. */
    DCL_STATUS_INVALID_NETWORK = 3,
    /* Bytes are not a plan (or a serialized layer), not one of this version, or a damaged one. */
    DCL_STATUS_INVALID_PLAN = 4,
    /* A shape is outside its profile, or breaks a shape rule of a layer. */
    DCL_STATUS_INVALID_SHAPE = 5,
    /* A buffer's length, type, alignment or place in memory does not fit its tensor. */
    DCL_STATUS_INVALID_BUFFER = 6,
    /* A layer's participants do not fit the communicator. */
    DCL_STATUS_INVALID_COMMUNICATOR = 7,
    /* Something that has to come first has not: a communicator, a shape, an address. */
    DCL_STATUS_NOT_READY = 8,
    /* What is wanted exists, but not here: a type, a device, a machine. */
    DCL_STATUS_UNSUPPORTED = 9,
    /* Another call is inside the same object: another thread's, or the one whose callback this is. */
    DCL_STATUS_BUSY = 10,
    /* The caller's buffer has not the room for what is copied out. */
    DCL_STATUS_BUFFER_TOO_SMALL = 11,
    /* Ranks that have to make the same call made different ones. */
    DCL_STATUS_DISAGREEMENT = 12,
    /* Other ranks did not come before the timeout. */
    DCL_STATUS_DEADLINE_EXCEEDED = 13,
    /* Another rank left the communicator while this one needed it. */
    DCL_STATUS_PEER_LOST = 14,
    /* Another rank failed, or somebody called abort; the message says who and why. */
    DCL_STATUS_ABORTED = 15,
    /* A plugin layer failed. */
    DCL_STATUS_PLUGIN = 16,
    /* The operating system, the GPU or one of its libraries refused something. */
    DCL_STATUS_SYSTEM = 17,
    /* A mistake of this library's. Please report it with the message. */
    DCL_STATUS_INTERNAL = 18
};

/* The type of a tensor's elements: TensorRT's DataType. TensorRT's INT4 (9), FP4 (10) and E8M0 (11) are refused by name. */
typedef int32_t dcl_data_type_t;
enum {
    DCL_DATA_TYPE_FLOAT = 0,
    DCL_DATA_TYPE_HALF = 1,
    DCL_DATA_TYPE_INT8 = 2,
    DCL_DATA_TYPE_INT32 = 3,
    /* One byte, any non-zero value is true. */
    DCL_DATA_TYPE_BOOL = 4,
    DCL_DATA_TYPE_UINT8 = 5,
    /* 8-bit float with 4 exponent bits (E4M3). */
    DCL_DATA_TYPE_FP8 = 6,
    DCL_DATA_TYPE_BF16 = 7,
    DCL_DATA_TYPE_INT64 = 8,
    /* 8-bit float with 5 exponent bits (E5M2). Not a TensorRT type. */
    DCL_DATA_TYPE_FP8_E5M2 = 100
};

/* What a collective does: TensorRT's CollectiveOperation. With n ranks an input of [d0, ...] gives an output of: */
typedef int32_t dcl_collective_operation_t;
enum {
    /* [d0, ...]: the reduction of all inputs. */
    DCL_COLLECTIVE_ALL_REDUCE = 0,
    /* [n * d0, ...]: all inputs, in the order of the ranks. */
    DCL_COLLECTIVE_ALL_GATHER = 1,
    /* [d0, ...]: the root's input; the others' are not read. */
    DCL_COLLECTIVE_BROADCAST = 2,
    /* [d0, ...]: at the root the reduction of all inputs; the others' outputs are not written. */
    DCL_COLLECTIVE_REDUCE = 3,
    /* [d0 / n, ...]: block r of the reduction at rank r. d0 is a multiple of n, here and below. */
    DCL_COLLECTIVE_REDUCE_SCATTER = 4,
    /* [d0, ...]: block s at rank r is block r of rank s's input. */
    DCL_COLLECTIVE_ALL_TO_ALL = 5,
    /* [n * d0, ...]: at the root all inputs, in the order of the ranks; the others' outputs are not written. */
    DCL_COLLECTIVE_GATHER = 6,
    /* [d0 / n, ...]: block r of the root's input at rank r; the others' inputs are not read. */
    DCL_COLLECTIVE_SCATTER = 7
};

/* How elements are reduced: TensorRT's ReduceOperation. In the order of the ranks: floats of 32 bits in themselves, shorter ones in
 * float32 with one rounding at the end (to float8 it saturates), integers wrap. Of bool, SUM and MAX are or, PROD and MIN are and. In MAX
 * and MIN a NaN loses to a number. */
typedef int32_t dcl_reduce_operation_t;
enum {
    DCL_REDUCE_SUM = 0,
    DCL_REDUCE_PROD = 1,
    DCL_REDUCE_MAX = 2,
    DCL_REDUCE_MIN = 3,
    /* The sum divided by n; of integers the sum that has wrapped, towards zero, as NCCL has it. Not of bool. */
    DCL_REDUCE_AVG = 4,
    /* For operations that do not reduce. */
    DCL_REDUCE_NONE = 5
};

/* Whether a tensor is given or got: TensorRT's TensorIOMode. */
typedef int32_t dcl_tensor_io_mode_t;
enum { DCL_TENSOR_IO_MODE_NONE = 0, DCL_TENSOR_IO_MODE_INPUT = 1, DCL_TENSOR_IO_MODE_OUTPUT = 2 };

/* A shape of an optimization profile: TensorRT's OptProfileSelector. */
typedef int32_t dcl_opt_profile_selector_t;
enum { DCL_OPT_PROFILE_MIN = 0, DCL_OPT_PROFILE_OPT = 1, DCL_OPT_PROFILE_MAX = 2 };

/* How bad a line of the log is: TensorRT's ILogger::Severity. */
typedef int32_t dcl_severity_t;
enum { DCL_SEVERITY_ERROR = 1, DCL_SEVERITY_WARNING = 2, DCL_SEVERITY_INFO = 3, DCL_SEVERITY_VERBOSE = 4 };

/* Where input and output of a collective may share memory, exactly as NCCL has it ("In-place operation will happen if"). */
typedef int32_t dcl_in_place_t;
enum {
    /* The buffers must be apart. */
    DCL_IN_PLACE_NEVER = 0,
    /* Both at the same address. */
    DCL_IN_PLACE_SAME_ADDRESS = 1,
    /* The input is a block of the output: input = output + element_offset elements. */
    DCL_IN_PLACE_INPUT_AT = 2,
    /* The output is a block of the input: output = input + element_offset elements. */
    DCL_IN_PLACE_OUTPUT_AT = 3,
    /* Gather and scatter off the root, and ranks that do not take part: one of the two is not used, so nothing can overlap. */
    DCL_IN_PLACE_UNUSED = 4
};

/* The most dimensions of a tensor. */
#define DCL_MAX_DIMS 8

/* Dimensions: TensorRT's Dims64. -1 stands for a dynamic dimension, where one is allowed. */
typedef struct dcl_dims {
    int32_t nb_dims;
    int64_t d[DCL_MAX_DIMS];
} dcl_dims_t;

/* For a timeout: 600 s, or DCL_TIMEOUT of the environment, or the communicator's own. */
#define DCL_TIMEOUT_DEFAULT (-1)

/* A rank that is in no group of a split. */
#define DCL_NO_COLOR (-1)

typedef struct dcl_network dcl_network_t;
typedef struct dcl_tensor dcl_tensor_t;
typedef struct dcl_layer dcl_layer_t;
typedef struct dcl_engine dcl_engine_t;
typedef struct dcl_execution_context dcl_execution_context_t;
typedef struct dcl_bound_layer dcl_bound_layer_t;
typedef struct dcl_environment dcl_environment_t;
typedef struct dcl_communicator dcl_communicator_t;
typedef struct dcl_buffer dcl_buffer_t;
typedef struct dcl_stream dcl_stream_t;
typedef struct dcl_work dcl_work_t;

/* ---------------------------------------------------------------------------------------------------------------------------------
 * The library
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* The library's version, as DCL_VERSION is the header's. [local, shared] */
uint32_t dcl_version(void);

/* The library's version as text, such as "0.1.0". The string lives for ever. [local, shared] */
const char *dcl_version_string(void);

/* The name of a status, such as "DCL_STATUS_INVALID_SHAPE"; of another number "unknown status". The string lives for ever.
 * [local, shared] */
const char *dcl_status_name(dcl_status_t status);

/* Copies out what went wrong in the last call of this thread that failed: one sentence that names, as far as they are known, the
 * rank, the layer with its kind, the rule, what was expected and what came. A call that succeeds leaves it as it is. Returns the
 * length without the NUL, 0 if nothing has failed; a text that is longer than `capacity` - 1 is cut, at a character's end.
 * `buffer` may be NULL if `capacity` is 0. [local, shared] */
size_t dcl_last_error_message(char *buffer, size_t capacity);

/* Makes `message` what dcl_last_error_message gives on this thread, and the rank unknown. A plugin's callback says so why it fails, and
 * then returns `status`. [local, shared] */
dcl_status_t dcl_set_last_error(dcl_status_t status, const char *message);

/* The communicator rank on which the last failure of this thread happened; -1 where it is not known. [local, shared] */
int32_t dcl_last_error_rank(void);

/* The name of a type in text, such as "bfloat16"; NULL for a number that is none. The string lives for ever. [local, shared] */
const char *dcl_data_type_name(dcl_data_type_t data_type);

/* The size of an element in bytes, which is also the alignment that its buffers need; 0 for a number that is no type.
 * [local, shared] */
size_t dcl_data_type_size(dcl_data_type_t data_type);

/* The name of an operation in text, such as "all_reduce"; NULL for a number that is none. The string lives for ever.
 * [local, shared] */
const char *dcl_collective_operation_name(dcl_collective_operation_t operation);

/* The name of a reduction in text, such as "sum"; "none" for DCL_REDUCE_NONE, NULL for a number that is none. The string lives
 * for ever. [local, shared] */
const char *dcl_reduce_operation_name(dcl_reduce_operation_t reduce_op);

/* Takes a line of the log. `message` ends with the call. It may be called from any thread of the library's and the caller's,
 * several at once; it does not call this library, and does not leave by an exception or longjmp. */
typedef void (*dcl_log_callback_t)(dcl_severity_t severity, const char *message, void *user_data);

/* Sends the log to `callback`, up to this severity: WARNING gets warnings and errors. NULL ends that. When it returns nobody is
 * inside the callback of before, and its `user_data` is the caller's again. Until then both are kept, at the end of the program
 * too, since threads of the library outlive main. It waits for callbacks of other threads, so the caller holds no lock that they
 * want; called by the callback itself it is DCL_STATUS_BUSY. Without a callback the log goes to stderr, as far as the environment
 * variable DCL_LOG (off, error, warn, info, debug, trace) asks for it; unset, nothing is logged. [local, shared] */
dcl_status_t dcl_set_log_callback(dcl_log_callback_t callback, void *user_data, dcl_severity_t most_verbose);

/* ---------------------------------------------------------------------------------------------------------------------------------
 * 1a. The network
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* A network without tensors: TensorRT's INetworkDefinition. Free it with dcl_network_free. [local, shared] */
dcl_status_t dcl_network_new(dcl_network_t **network);

/* Frees a network, with the handles of its tensors and layers, and waits for nobody. Engines built from it stay. [local, shared] */
dcl_status_t dcl_network_free(dcl_network_t *network);

/* Adds an input: TensorRT's addInput. A dimension of -1 needs a profile and is settled by dcl_execution_context_set_input_shape.
 * The tensor belongs to the network and goes with it. [local, exclusive] */
dcl_status_t dcl_network_add_input(dcl_network_t *network, const char *name, dcl_data_type_t data_type, const dcl_dims_t *dims,
                                   dcl_tensor_t **tensor);

/* Says between which shapes an input with dimensions of -1 lies, and which is the usual one: TensorRT's IOptimizationProfile.
 * [local, exclusive] */
dcl_status_t dcl_network_set_optimization_profile(dcl_network_t *network, dcl_tensor_t *input, const dcl_dims_t *min,
                                                  const dcl_dims_t *opt, const dcl_dims_t *max);

/* Adds a DistCollective layer: TensorRT's addDistCollective. `reduce_op` is DCL_REDUCE_NONE where the operation does not reduce;
 * `root` is -1 where it has none (another value is ignored, with a warning in the log). `groups` are `group_size` communicator
 * ranks in group order; with 0 all ranks take part, whatever the pointer. With more than one rank and no groups,
 * dcl_layer_set_nb_rank has to follow. The layer belongs to the network and goes with it.
 * Errors: unknown numbers, a reduction missing or given against the operation, a root missing, a rank negative or named twice,
 * the average of bool. Everything else is checked at dcl_engine_build. [local, exclusive] */
dcl_status_t dcl_network_add_dist_collective(dcl_network_t *network, dcl_tensor_t *input, dcl_collective_operation_t operation,
                                             dcl_reduce_operation_t reduce_op, int64_t root, const int64_t *groups,
                                             int64_t group_size, dcl_layer_t **layer);

/* Adds a Shuffle layer, TensorRT's addShuffle: first transpose, reshape, second transpose, each of which does nothing until
 * dcl_shuffle_set_... says what. The layer belongs to the network and goes with it. [local, exclusive] */
dcl_status_t dcl_network_add_shuffle(dcl_network_t *network, dcl_tensor_t *input, dcl_layer_t **layer);

/* Adds a Cast layer: TensorRT's addCast. Rounds to nearest even; to float8 it saturates; from floats to integers it truncates and
 * saturates, and NaN becomes 0; to bool it is "not zero"; integers wrap. The layer belongs to the network and goes with it.
 * [local, exclusive] */
dcl_status_t dcl_network_add_cast(dcl_network_t *network, dcl_tensor_t *input, dcl_data_type_t to_type, dcl_layer_t **layer);

/* Adds a constant with a copy of `byte_len` bytes, which are the elements of a tensor of these dimensions: TensorRT's
 * addConstant. The layer belongs to the network and goes with it. [local, exclusive] */
dcl_status_t dcl_network_add_constant(dcl_network_t *network, dcl_data_type_t data_type, const dcl_dims_t *dims, const void *weights,
                                      size_t byte_len, dcl_layer_t **layer);

/* Makes a tensor an output and names it: TensorRT's markOutput. [local, exclusive] */
dcl_status_t dcl_network_mark_output(dcl_network_t *network, dcl_tensor_t *tensor, const char *name);

/* The number of layers. [local, shared] */
dcl_status_t dcl_network_get_nb_layers(dcl_network_t *network, int32_t *nb_layers);

/* A layer, in the order in which they were added; the same handle every time. It belongs to the network. [local, shared] */
dcl_status_t dcl_network_get_layer(dcl_network_t *network, int32_t index, dcl_layer_t **layer);

/* The number of inputs. [local, shared] */
dcl_status_t dcl_network_get_nb_inputs(dcl_network_t *network, int32_t *nb_inputs);

/* An input, in the order in which they were added; the same handle every time. It belongs to the network. [local, shared] */
dcl_status_t dcl_network_get_input(dcl_network_t *network, int32_t index, dcl_tensor_t **tensor);

/* The number of outputs. [local, shared] */
dcl_status_t dcl_network_get_nb_outputs(dcl_network_t *network, int32_t *nb_outputs);

/* An output, in the order in which they were marked; the same handle every time. It belongs to the network. [local, shared] */
dcl_status_t dcl_network_get_output(dcl_network_t *network, int32_t index, dcl_tensor_t **tensor);

/* ---------------------------------------------------------------------------------------------------------------------------------
 * 1b. Tensors and layers
 *
 * A tensor belongs to its network, and so does a layer, but for one of dcl_dist_collective_new, which belongs to none. "Exclusive" means
 * the network here: a call that changes a network, its tensors or its layers is alone in it.
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* The name of a tensor, copied out. [local, shared] */
dcl_status_t dcl_tensor_get_name(dcl_tensor_t *tensor, char *buffer, size_t capacity, size_t *length);

/* Names a tensor. Names of inputs and outputs are how a context finds them. [local, exclusive] */
dcl_status_t dcl_tensor_set_name(dcl_tensor_t *tensor, const char *name);

/* The type of a tensor's elements, as the layers are now. [local, shared] */
dcl_status_t dcl_tensor_get_type(dcl_tensor_t *tensor, dcl_data_type_t *data_type);

/* Frees a layer of dcl_dist_collective_new, _clone or _deserialize. One of a network is an error: it goes with its network.
 * [local, shared] */
dcl_status_t dcl_layer_free(dcl_layer_t *layer);

/* What kind of layer it is, copied out: "all_reduce" to "scatter", "shuffle", "cast", "constant", or a plugin's name.
 * [local, shared] */
dcl_status_t dcl_layer_get_kind(dcl_layer_t *layer, char *buffer, size_t capacity, size_t *length);

/* The name, copied out. Errors and dcl_engine_inspect use it. A network gives one to a layer without. [local, shared] */
dcl_status_t dcl_layer_get_name(dcl_layer_t *layer, char *buffer, size_t capacity, size_t *length);

/* Names a layer. Layers of a network have different names. [local, exclusive] */
dcl_status_t dcl_layer_set_name(dcl_layer_t *layer, const char *name);

/* Text of the user's that goes with the layer and means nothing to it, copied out. [local, shared] */
dcl_status_t dcl_layer_get_metadata(dcl_layer_t *layer, char *buffer, size_t capacity, size_t *length);

/* Sets that text. [local, exclusive] */
dcl_status_t dcl_layer_set_metadata(dcl_layer_t *layer, const char *metadata);

/* The number of ranks. Unset, it is the group's length, or 1. [local, shared] */
dcl_status_t dcl_layer_get_nb_rank(dcl_layer_t *layer, int32_t *nb_rank);

/* Sets the number of ranks: the group's length, or without groups the communicator's size. Explicitly 1, without groups, makes
 * the layer the identity on every rank. Unset, without groups, on a communicator of several ranks is an error at
 * dcl_execution_context_set_communicator. [local, exclusive] */
dcl_status_t dcl_layer_set_nb_rank(dcl_layer_t *layer, int32_t nb_rank);

/* The number of inputs. A layer of no network is an error. [local, shared] */
dcl_status_t dcl_layer_get_nb_inputs(dcl_layer_t *layer, int32_t *nb_inputs);

/* An input. It belongs to the network. A layer of no network is an error. [local, shared] */
dcl_status_t dcl_layer_get_input(dcl_layer_t *layer, int32_t index, dcl_tensor_t **tensor);

/* Gives a layer another input: TensorRT's setInput. Types, shapes and cycles are checked at dcl_engine_build. A layer of no
 * network is an error. [local, exclusive] */
dcl_status_t dcl_layer_set_input(dcl_layer_t *layer, int32_t index, dcl_tensor_t *tensor);

/* The number of outputs. A layer of no network is an error. [local, shared] */
dcl_status_t dcl_layer_get_nb_outputs(dcl_layer_t *layer, int32_t *nb_outputs);

/* An output. It belongs to the network. A layer of no network is an error. [local, shared] */
dcl_status_t dcl_layer_get_output(dcl_layer_t *layer, int32_t index, dcl_tensor_t **tensor);

/* What a DistCollective layer does. A layer of another kind is an error, here and in all dcl_dist_collective_ calls.
 * [local, shared] */
dcl_status_t dcl_dist_collective_get_collective_operation(dcl_layer_t *layer, dcl_collective_operation_t *operation);

/* Sets what it does. Reduction and root stay: at dcl_engine_build or _bind the reduction has to fit, and a root that is needed has to
 * be there. [local, exclusive] */
dcl_status_t dcl_dist_collective_set_collective_operation(dcl_layer_t *layer, dcl_collective_operation_t operation);

/* The reduction, or DCL_REDUCE_NONE. [local, shared] */
dcl_status_t dcl_dist_collective_get_reduce_op(dcl_layer_t *layer, dcl_reduce_operation_t *reduce_op);

/* Sets the reduction. [local, exclusive] */
dcl_status_t dcl_dist_collective_set_reduce_op(dcl_layer_t *layer, dcl_reduce_operation_t reduce_op);

/* The root, or -1. [local, shared] */
dcl_status_t dcl_dist_collective_get_root(dcl_layer_t *layer, int64_t *root);

/* Sets the root: a communicator rank that takes part, or with a partition the place in each group. -1 is none. It is kept, and not
 * used, while the operation has no root. [local, exclusive] */
dcl_status_t dcl_dist_collective_set_root(dcl_layer_t *layer, int64_t root);

/* Who takes part: copies out the ranks of all groups, one group after the other. *nb_groups is 0 where all ranks take part, 1
 * with a group or a partition of one, else the partition's number of groups; *group_size is the length of each. `capacity` and
 * *nb_groups * *group_size count ranks. With `groups` NULL only the numbers are written; too little capacity is
 * DCL_STATUS_BUFFER_TOO_SMALL and writes nothing. [local, shared] */
dcl_status_t dcl_dist_collective_get_groups(dcl_layer_t *layer, int64_t *groups, size_t capacity, int64_t *nb_groups,
                                            int64_t *group_size);

/* Sets one group, or with a `group_size` of 0 all ranks; see dcl_network_add_dist_collective. The root keeps its number, which
 * counts in the communicator from then on. [local, exclusive] */
dcl_status_t dcl_dist_collective_set_groups(dcl_layer_t *layer, const int64_t *groups, int64_t group_size);

/* Sets disjoint groups of equal length, so that one network serves every rank of a mesh: `nb_groups` * `group_size` ranks, one
 * group after the other. They need not cover every rank. The root keeps its number, which counts within each group from then on.
 * Not in TensorRT. [local, exclusive] */
dcl_status_t dcl_dist_collective_set_partition(dcl_layer_t *layer, const int64_t *groups, int64_t nb_groups, int64_t group_size);

/* A transpose of a Shuffle layer, copied out: dimension i of the result is dimension permutation[i] of what comes. *nb_dims is 0
 * where there is none. `permutation` has room for DCL_MAX_DIMS. A layer of another kind is an error, here and in all
 * dcl_shuffle_ calls. [local, shared] */
dcl_status_t dcl_shuffle_get_first_transpose(dcl_layer_t *layer, int32_t *permutation, int32_t *nb_dims);

/* Sets the transpose before the reshape; with `nb_dims` 0 there is none. [local, exclusive] */
dcl_status_t dcl_shuffle_set_first_transpose(dcl_layer_t *layer, const int32_t *permutation, int32_t nb_dims);

/* The dimensions of the reshape. nb_dims is -1 where there is none. [local, shared] */
dcl_status_t dcl_shuffle_get_reshape_dimensions(dcl_layer_t *layer, dcl_dims_t *dims);

/* Sets the dimensions of the reshape: 0 copies the dimension of the same index (after the first transpose), one -1 is inferred.
 * NULL, or an nb_dims of -1, is none. [local, exclusive] */
dcl_status_t dcl_shuffle_set_reshape_dimensions(dcl_layer_t *layer, const dcl_dims_t *dims);

/* The second transpose; see dcl_shuffle_get_first_transpose. [local, shared] */
dcl_status_t dcl_shuffle_get_second_transpose(dcl_layer_t *layer, int32_t *permutation, int32_t *nb_dims);

/* Sets the transpose after the reshape; with `nb_dims` 0 there is none. [local, exclusive] */
dcl_status_t dcl_shuffle_set_second_transpose(dcl_layer_t *layer, const int32_t *permutation, int32_t nb_dims);

/* The type that a Cast layer converts to. A layer of another kind is an error, here and in all dcl_cast_ calls. [local, shared] */
dcl_status_t dcl_cast_get_to_type(dcl_layer_t *layer, dcl_data_type_t *to_type);

/* Sets the type that a Cast layer converts to. [local, exclusive] */
dcl_status_t dcl_cast_set_to_type(dcl_layer_t *layer, dcl_data_type_t to_type);

/* The type and dimensions of a constant; either pointer may be NULL. A layer of another kind is an error, here and in all
 * dcl_constant_ calls. [local, shared] */
dcl_status_t dcl_constant_get_dimensions(dcl_layer_t *layer, dcl_data_type_t *data_type, dcl_dims_t *dims);

/* The bytes of a constant, copied out. [local, shared] */
dcl_status_t dcl_constant_get_weights(dcl_layer_t *layer, void *buffer, size_t capacity, size_t *length);

/* Sets a constant; type and dimensions may be others than before. The bytes are copied. [local, exclusive] */
dcl_status_t dcl_constant_set_weights(dcl_layer_t *layer, dcl_data_type_t data_type, const dcl_dims_t *dims, const void *weights,
                                      size_t byte_len);

/* ---------------------------------------------------------------------------------------------------------------------------------
 * 1c. Plugins: layers of the caller's own, so that a model's compute can stand between collectives
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* The most inputs of a plugin, and the most outputs. */
#define DCL_MAX_PLUGIN_TENSORS 16

/* A tensor of one run of a plugin. */
typedef struct dcl_plugin_tensor {
    /* In the memory that the context runs in: the host's, or the GPU's. Aligned to the element. */
    void *address;
    size_t byte_len;
    dcl_data_type_t data_type;
    dcl_dims_t dims;
} dcl_plugin_tensor_t;

/* What a plugin is: TensorRT's IPluginV3 with its phases in one. The callbacks may be called by several threads at once, on the
 * threads that build and run; they return a status, and do not leave by an exception or longjmp. They may call this library, but
 * do not use the context or the stream that runs them, and do not wait for what is behind them in a stream. A status that is not
 * a success becomes DCL_STATUS_PLUGIN, or at dcl_engine_build one of the mistakes of DCL_STATUS_INVALID_NETWORK; with the message of the
 * callback's last failure, that of dcl_set_last_error included, if it has that status. */
typedef struct dcl_plugin {
    size_t struct_size;
    /* How plans and errors know it. Copied. */
    const char *type_name;
    /* A plan is read back by the same version only. NULL is "1". Copied. */
    const char *version;
    /* Handed to every callback. Kept until `destroy`. */
    void *user_data;
    int32_t nb_outputs;
    /* Not 0: `enqueue` can compute on a GPU. Without, it cannot stand in a network that runs on GPUs. */
    int32_t runs_on_cuda;
    /* Writes the types of the outputs. */
    dcl_status_t (*get_output_data_types)(void *user_data, const dcl_data_type_t *inputs, int32_t nb_inputs, dcl_data_type_t *outputs,
                                          int32_t nb_outputs);
    /* Writes the shapes of the outputs; none of those that come is dynamic. */
    dcl_status_t (*get_output_shapes)(void *user_data, const dcl_dims_t *inputs, int32_t nb_inputs, dcl_dims_t *outputs,
                                      int32_t nb_outputs);
    /* Computes every output, whole. On a GPU it enqueues on `cuda_stream` what computes them, and waits for nothing; on the host
     * that is NULL. An error ends the communicator: the other ranks get one that names this layer. */
    dcl_status_t (*enqueue)(void *user_data, const dcl_plugin_tensor_t *inputs, int32_t nb_inputs, const dcl_plugin_tensor_t *outputs,
                            int32_t nb_outputs, void *cuda_stream);
    /* Copies out what a plan keeps, by (buffer, capacity, length). NULL: a plan cannot keep the plugin. */
    dcl_status_t (*serialize)(void *user_data, void *buffer, size_t capacity, size_t *length);
    /* Called once, by whichever thread frees the last that needs the plugin. May be NULL. */
    void (*destroy)(void *user_data);
} dcl_plugin_t;
#define DCL_PLUGIN_INIT {sizeof(dcl_plugin_t), NULL, NULL, NULL, 1, 0, NULL, NULL, NULL, NULL, NULL}

/* Adds a plugin layer: TensorRT's addPluginV3. The layer belongs to the network and goes with it; the plugin goes when no
 * network, engine or context needs it. If the call fails the plugin stays the caller's, and `destroy` is not called. [local,
 * exclusive] */
dcl_status_t dcl_network_add_plugin(dcl_network_t *network, const char *name, dcl_tensor_t *const *inputs, int32_t nb_inputs,
                                    const dcl_plugin_t *plugin, dcl_layer_t **layer);

/* Makes plugins again from what plans keep of them: TensorRT's IPluginCreatorV3One. */
typedef struct dcl_plugin_creator {
    size_t struct_size;
    /* What it makes; NULL is version "1". */
    const char *type_name;
    const char *version;
    void *user_data;
    /* Fills in `plugin`, which comes as DCL_PLUGIN_INIT has it, from the bytes of its `serialize`: one of the type and version
     * above. If it returns success, the plugin is the library's, which calls its `destroy` whatever follows. */
    dcl_status_t (*create)(void *user_data, const void *bytes, size_t byte_len, dcl_plugin_t *plugin);
} dcl_plugin_creator_t;
#define DCL_PLUGIN_CREATOR_INIT {sizeof(dcl_plugin_creator_t), NULL, NULL, NULL, NULL}

/* ---------------------------------------------------------------------------------------------------------------------------------
 * 1d. The engine
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* Validates a network, plans its memory and gives an engine that does not change any more: TensorRT's IBuilder and ICudaEngine. The
 * network stays as it is. Free the engine with dcl_engine_free.
 * Errors: DCL_STATUS_INVALID_NETWORK with all mistakes, each naming its layer and rule. [local, shared] */
dcl_status_t dcl_engine_build(dcl_network_t *network, dcl_engine_t **engine);

/* Frees an engine. Its contexts stay. [local, shared] */
dcl_status_t dcl_engine_free(dcl_engine_t *engine);

/* The engine as plan bytes, copied out. The same network gives the same bytes, on every rank. [local, shared] */
dcl_status_t dcl_engine_serialize(dcl_engine_t *engine, void *buffer, size_t capacity, size_t *length);

/* Reads plan bytes: TensorRT's deserializeCudaEngine. They may come from anywhere; what breaks a rule is an error. Free
 * the engine with dcl_engine_free. [local, shared] */
dcl_status_t dcl_engine_deserialize(const void *plan, size_t byte_len, dcl_engine_t **engine);

/* dcl_engine_deserialize of a network with plugins, which are made by `creators`. They are used during the call only. [local,
 * shared] */
dcl_status_t dcl_engine_deserialize_with_plugins(const void *plan, size_t byte_len, const dcl_plugin_creator_t *creators,
                                                 int32_t nb_creators, dcl_engine_t **engine);

/* Tensors, layers, schedule and memory as JSON, copied out: TensorRT's IEngineInspector. [local, shared] */
dcl_status_t dcl_engine_inspect(dcl_engine_t *engine, char *buffer, size_t capacity, size_t *length);

/* A short text that differs between engines that compute different things, such as "8c1f02aa", copied out. [local, shared] */
dcl_status_t dcl_engine_get_fingerprint(dcl_engine_t *engine, char *buffer, size_t capacity, size_t *length);

/* How many things the build found allowed but deserving a second look. [local, shared] */
dcl_status_t dcl_engine_get_nb_warnings(dcl_engine_t *engine, int32_t *nb_warnings);

/* One of them, copied out. [local, shared] */
dcl_status_t dcl_engine_get_warning(dcl_engine_t *engine, int32_t index, char *buffer, size_t capacity, size_t *length);

/* The number of inputs and outputs. [local, shared] */
dcl_status_t dcl_engine_get_nb_io_tensors(dcl_engine_t *engine, int32_t *nb_tensors);

/* The name of an input or output, copied out: the inputs, then the outputs, each in the order in which they were added. [local,
 * shared] */
dcl_status_t dcl_engine_get_io_tensor_name(dcl_engine_t *engine, int32_t index, char *buffer, size_t capacity, size_t *length);

/* Whether a tensor is an input or an output; DCL_TENSOR_IO_MODE_NONE where there is none of that name. [local, shared] */
dcl_status_t dcl_engine_get_tensor_io_mode(dcl_engine_t *engine, const char *name, dcl_tensor_io_mode_t *mode);

/* The type of an input or output. [local, shared] */
dcl_status_t dcl_engine_get_tensor_data_type(dcl_engine_t *engine, const char *name, dcl_data_type_t *data_type);

/* The dimensions of an input or output; -1 where they depend on input shapes. [local, shared] */
dcl_status_t dcl_engine_get_tensor_shape(dcl_engine_t *engine, const char *name, dcl_dims_t *dims);

/* The shapes between which an input or output lies: a profile's, or what follows from it. [local, shared] */
dcl_status_t dcl_engine_get_profile_shape(dcl_engine_t *engine, const char *name, dcl_opt_profile_selector_t selector, dcl_dims_t *dims);

/* ---------------------------------------------------------------------------------------------------------------------------------
 * 1e. The execution context
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* How a context runs. */
typedef struct dcl_execution_context_options {
    size_t struct_size;
    /* Not 0: on GPUs, runs with the same shapes and addresses are recorded into a CUDA graph, the second time, and replayed from
     * then on. All ranks have to do alike. On the host it changes nothing. */
    int32_t cuda_graph;
    /* 0. */
    int32_t reserved;
} dcl_execution_context_options_t;
#define DCL_EXECUTION_CONTEXT_OPTIONS_INIT {sizeof(dcl_execution_context_options_t), 0, 0}

/* A context to run an engine in, with memory of its own: TensorRT's createExecutionContext. `options` may be NULL. Free the
 * context with dcl_execution_context_free. [local, shared] */
dcl_status_t dcl_engine_create_execution_context(dcl_engine_t *engine, const dcl_execution_context_options_t *options,
                                                 dcl_execution_context_t **context);

/* Frees a context. Work under way keeps what it needs. [local, shared] */
dcl_status_t dcl_execution_context_free(dcl_execution_context_t *context);

/* Sets the communicator on which the layers run: TensorRT's setCommunicator. Ranks compare the collective calls of their plans,
 * once: operations, reductions, roots, participants, types and shapes. The context keeps the communicator alive; work under way
 * keeps the one of before.
 * Errors: DCL_STATUS_INVALID_COMMUNICATOR, a layer's ranks do not fit, here or on another rank; DCL_STATUS_DISAGREEMENT, the
 * plans differ, with the first differing layer and all sides. Then no rank has set it, and the communicator still works.
 * [collective, exclusive] */
dcl_status_t dcl_execution_context_set_communicator(dcl_execution_context_t *context, dcl_communicator_t *communicator);

/* The time that a run may take, from the moment at which it is enqueued, in milliseconds; DCL_TIMEOUT_DEFAULT is the communicator's
 * timeout. A collective that waits for other ranks at the end of that time is an error. [local, exclusive] */
dcl_status_t dcl_execution_context_set_timeout(dcl_execution_context_t *context, int64_t timeout_ms);

/* Sets the shape of an input, within its profile: TensorRT's setInputShape. Work under way keeps its shapes. An error leaves the
 * shapes as they were. [local, exclusive] */
dcl_status_t dcl_execution_context_set_input_shape(dcl_execution_context_t *context, const char *name, const dcl_dims_t *dims);

/* Sets the shapes of `nb_inputs` inputs, which have to change together. [local, exclusive] */
dcl_status_t dcl_execution_context_set_input_shapes(dcl_execution_context_t *context, const char *const *names, const dcl_dims_t *dims,
                                                    int32_t nb_inputs);

/* The shape of an input or output, once the shapes of all inputs are known: TensorRT's getTensorShape. [local, shared] */
dcl_status_t dcl_execution_context_get_tensor_shape(dcl_execution_context_t *context, const char *name, dcl_dims_t *dims);

/* Binds an input or output to the caller's memory: TensorRT's setTensorAddress, with the length in bytes. A run finds it too short, but
 * not too long: memory for the longest shape stays bound while shapes change, and the tensor is at its beginning. It is host memory,
 * or with a communicator on GPUs that GPU's. NULL unbinds. An input that is not read on
 * this rank, and an output that is not written, may be left unbound. During a run, which uses what was bound when it was
 * enqueued, the memory is valid, nobody else writes it, and nobody else reads an output. [local, exclusive] */
dcl_status_t dcl_execution_context_set_tensor_address(dcl_execution_context_t *context, const char *name, void *address, size_t byte_len);

/* What an input or output is bound to; NULL where it is not. [local, shared] */
dcl_status_t dcl_execution_context_get_tensor_address(dcl_execution_context_t *context, const char *name, void **address);

/* Runs the engine on what is bound: TensorRT's enqueueV3. Ranks enqueue in the same order.
 *
 * `stream` NULL is the calling thread: the run is done when the call returns, which waits for other ranks, no longer than the
 * timeout. A plugin cannot run the context that runs it: DCL_STATUS_INVALID_ARGUMENT, or DCL_STATUS_BUSY. On another stream the call returns at once. `work`, if it is not NULL, gets a handle on the run, to
 * be freed with dcl_work_free; without one, the run's error comes from dcl_stream_synchronize.
 *
 * Errors: before anything moves, a shape, an address or the communicator is missing, memory is too short, buffers overlap.
 * What fails afterwards ends the communicator, so that no rank waits for this one. [collective, exclusive] */
dcl_status_t dcl_execution_context_enqueue(dcl_execution_context_t *context, dcl_stream_t *stream, dcl_work_t **work);

/* ---------------------------------------------------------------------------------------------------------------------------------
 * 2. The layer by itself
 *
 * For an engine with a graph of its own. The calls of 1b set and get its attributes.
 * In an IPluginV3: supportsFormatCombination -> _check_type, getOutputShapes -> _get_output_dims, attachToContext -> _bind,
 * enqueue -> dcl_bound_layer_enqueue, clone -> _clone, getFieldsToSerialize -> _serialize. It needs no workspace of the engine's.
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* A DistCollective layer that belongs to no network; the arguments are those of dcl_network_add_dist_collective. Free it with
 * dcl_layer_free. [local, shared] */
dcl_status_t dcl_dist_collective_new(dcl_collective_operation_t operation, dcl_reduce_operation_t reduce_op, int64_t root,
                                     const int64_t *groups, int64_t group_size, dcl_layer_t **layer);

/* A copy of a DistCollective layer, also of one in a network, that belongs to no network. Free it with dcl_layer_free.
 * [local, shared] */
dcl_status_t dcl_dist_collective_clone(dcl_layer_t *layer, dcl_layer_t **clone);

/* The attributes as bytes, copied out. [local, shared] */
dcl_status_t dcl_dist_collective_serialize(dcl_layer_t *layer, void *buffer, size_t capacity, size_t *length);

/* A layer from those bytes, which may come from anywhere. Free it with dcl_layer_free. [local, shared] */
dcl_status_t dcl_dist_collective_deserialize(const void *bytes, size_t byte_len, dcl_layer_t **layer);

/* Whether the layer takes inputs of this type. DCL_STATUS_INVALID_ARGUMENT if not: only the average of bool. [local, shared] */
dcl_status_t dcl_dist_collective_check_type(dcl_layer_t *layer, dcl_data_type_t data_type);

/* The dimensions of the output, from those of the input; -1 stays -1. `output` may be `input`. Errors: attributes that do not
 * fit together, a shape that the operation cannot take. [local, shared] */
dcl_status_t dcl_dist_collective_get_output_dims(dcl_layer_t *layer, const dcl_dims_t *input, dcl_dims_t *output);

/* Puts the layer, as it is now, on a communicator, for inputs of one type: checks that it fits, compares it with the other ranks'
 * and splits off its groups. What it gives is a copy; the layer may change or go. Free it with dcl_bound_layer_free.
 * Errors: as dcl_execution_context_set_communicator. [collective, shared] */
dcl_status_t dcl_dist_collective_bind(dcl_layer_t *layer, dcl_communicator_t *communicator, dcl_data_type_t data_type,
                                      dcl_bound_layer_t **bound);

/* Frees a bound layer. Work under way keeps what it needs. [local, shared] */
dcl_status_t dcl_bound_layer_free(dcl_bound_layer_t *bound);

/* The dimensions of the output, from those of the input; here none is -1. `output` may be `input`. [local, shared] */
dcl_status_t dcl_bound_layer_get_output_dims(dcl_bound_layer_t *bound, const dcl_dims_t *input, dcl_dims_t *output);

/* Where input and output may share memory on this rank, for an input of these dimensions; which of them are used at all is
 * dcl_bound_layer_get_uses's matter. *element_offset is 0 where the rule has none, and `element_offset` may be NULL. [local,
 * shared] */
dcl_status_t dcl_bound_layer_get_in_place(dcl_bound_layer_t *bound, const dcl_dims_t *input, dcl_in_place_t *in_place,
                                          size_t *element_offset);

/* Whether this rank's input is read, and whether its output is written: 1 or 0. A buffer that is not used may be NULL. Either
 * pointer may be NULL. [local, shared] */
dcl_status_t dcl_bound_layer_get_uses(dcl_bound_layer_t *bound, int32_t *reads_input, int32_t *writes_output);

/* The same before there is a communicator, on a rank of the layer's group, for dimensions of which none is -1: what an engine asks
 * that plans its memory, as TensorRT does by getAliasedInput. [local, shared] */
dcl_status_t dcl_dist_collective_get_in_place(dcl_layer_t *layer, int32_t group_rank, const dcl_dims_t *input, dcl_in_place_t *in_place,
                                              size_t *element_offset);

/* Runs the layer on an input of these dimensions. Addresses are in the communicator's memory: the host's, or its GPU's. `stream`
 * and `work` are as in dcl_execution_context_enqueue. Until the run is done the memory is valid and nobody else uses it.
 * Errors: before anything moves, dimensions that the operation cannot take, addresses that are NULL, misaligned or overlap
 * against the in-place rule. [collective, shared] */
dcl_status_t dcl_bound_layer_enqueue(dcl_bound_layer_t *bound, const void *input, void *output, const dcl_dims_t *dims,
                                     dcl_stream_t *stream, dcl_work_t **work);

/* ---------------------------------------------------------------------------------------------------------------------------------
 * 3a. The environment: what a launcher started
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* What an environment shall be; what is left as _INIT has it is found in the launcher's variables (torchrun's, TensorRT's
 * TRT_MY_RANK, TRT_WORLD_SIZE and TRT_NCCL_ID_FILE, Open MPI's, MPICH's, SLURM's). */
typedef struct dcl_environment_config {
    size_t struct_size;
    /* -1 is unset, for these five. */
    int32_t rank;
    int32_t world_size;
    int32_t local_rank;
    /* Where the launcher's rendezvous is, with `host`: MASTER_ADDR and MASTER_PORT. The launcher itself may listen there. */
    int32_t port;
    /* The port at `host` where our ranks meet over TCP; -1 is the one after `port`. */
    int32_t rendezvous_port;
    /* The number of this rank's GPU among those that the process sees; -1 is its local rank. */
    int32_t device;
    /* NULL is unset, for these two. */
    const char *host;
    /* What only this job's ranks know, instead of DCL_SECRET. An empty text is an error. */
    const char *secret;
    /* "nccl", "host", or "auto" (NULL too), which is NCCL where every rank has a GPU of its own. */
    const char *backend;
    /* Rank 0's reaches every rank. */
    uint64_t seed;
    /* For the bootstrap, and then for each call. */
    int64_t timeout_ms;
    /* Not 0: rank 0 prints a line when it is ready. */
    int32_t verbose;
    /* 0. */
    int32_t reserved;
} dcl_environment_config_t;
#define DCL_ENVIRONMENT_CONFIG_INIT                                                                                                      \
    {sizeof(dcl_environment_config_t), -1, -1, -1, -1, -1, -1, NULL, NULL, NULL, 1024, DCL_TIMEOUT_DEFAULT, 0, 0}

/* The launcher whose variables are set, copied out: "torchrun", for example; an empty text where there is none. [local, shared] */
dcl_status_t dcl_environment_detect_launcher(char *buffer, size_t capacity, size_t *length);

/* Meets the other ranks, one a process. `config` may be NULL. There is one environment at a time in a process. Leave it with
 * dcl_environment_finalize or dcl_environment_free.
 * Errors: everything that is missing or contradictory, at once; a backend that there is not; ranks that do not come.
 * [collective, shared] */
dcl_status_t dcl_environment_initialize(const dcl_environment_config_t *config, dcl_environment_t **environment);

/* Says good-bye: waits for every rank, so that one whose last call disagreed with the others' still learns of it, and frees the
 * handle, also with an error. Communicators made with it stay until they are freed. [collective, shared] */
dcl_status_t dcl_environment_finalize(dcl_environment_t *environment);

/* Frees the handle without waiting. When the communicators made with it are freed too, the rank has left, and others that wait
 * for it get an error. [local, shared] */
dcl_status_t dcl_environment_free(dcl_environment_t *environment);

/* This process's rank. [local, shared] */
dcl_status_t dcl_environment_get_rank(dcl_environment_t *environment, int32_t *rank);

/* The number of ranks. [local, shared] */
dcl_status_t dcl_environment_get_world_size(dcl_environment_t *environment, int32_t *world_size);

/* This process's number among those on its machine. [local, shared] */
dcl_status_t dcl_environment_get_local_rank(dcl_environment_t *environment, int32_t *local_rank);

/* The number of ranks on this machine. [local, shared] */
dcl_status_t dcl_environment_get_local_world_size(dcl_environment_t *environment, int32_t *local_world_size);

/* Who started the ranks, copied out. [local, shared] */
dcl_status_t dcl_environment_get_launcher(dcl_environment_t *environment, char *buffer, size_t capacity, size_t *length);

/* The seed that all ranks have. [local, shared] */
dcl_status_t dcl_environment_get_seed(dcl_environment_t *environment, uint64_t *seed);

/* A handle on the communicator of all ranks. Free it with dcl_communicator_free. [local, shared] */
dcl_status_t dcl_environment_get_communicator(dcl_environment_t *environment, dcl_communicator_t **communicator);

/* ---------------------------------------------------------------------------------------------------------------------------------
 * 3b. Communicators
 *
 * A handle is one rank's end. When the last handle of a rank is freed, and nothing else needs it, the rank has left, and others that wait for it
 * get DCL_STATUS_PEER_LOST.
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* The ranks of a new communicator that are threads of this process: communicators[r] is rank r, to be used by a thread of its own.
 * `backend` is "host", "nccl" (rank r on GPU r) or "auto" (NULL too), which is NCCL where there is a GPU for each rank.
 * `communicators` has room for `world_size` handles, each to be freed with dcl_communicator_free. [local, shared] */
dcl_status_t dcl_communicator_new_in_process(const char *backend, int32_t world_size, int64_t timeout_ms,
                                             dcl_communicator_t **communicators);

/* How processes of one machine meet on the host backend without a launcher. */
typedef struct dcl_bootstrap_config {
    size_t struct_size;
    /* The job's name: the same in all processes, and of no other job of this user at the same time. */
    const char *job;
    /* The number of ranks in all processes together. */
    int32_t world_size;
    /* This process's rank, or the first of them. */
    int32_t rank;
    /* How many ranks this process has. */
    int32_t local_ranks;
    /* 0. */
    int32_t reserved;
    int64_t timeout_ms;
} dcl_bootstrap_config_t;
#define DCL_BOOTSTRAP_CONFIG_INIT {sizeof(dcl_bootstrap_config_t), NULL, 1, 0, 1, 0, DCL_TIMEOUT_DEFAULT}

/* Meets the other processes. `communicators` has room for `config->local_ranks` handles, each to be used by a thread of its own
 * and freed with dcl_communicator_free. Nothing is left in the file system, and nothing survives a crash. [collective, shared] */
dcl_status_t dcl_communicator_bootstrap(const dcl_bootstrap_config_t *config, dcl_communicator_t **communicators);

/* The bytes of an ncclUniqueId. */
#define DCL_NCCL_ID_BYTES 128

/* Makes an id of DCL_NCCL_ID_BYTES for dcl_communicator_new_nccl, on one rank; the caller brings it to the others. [local,
 * shared] */
dcl_status_t dcl_nccl_id_new(uint8_t *id);

/* A communicator on GPUs: meets the other ranks that have the same id, processes of any machine or threads, each with the GPU of
 * this number among those that its process sees. Free it with dcl_communicator_free. [collective, shared] */
dcl_status_t dcl_communicator_new_nccl(const uint8_t *id, int32_t rank, int32_t world_size, int32_t device, int64_t timeout_ms,
                                       dcl_communicator_t **communicator);

/* A communicator on the caller's ncclComm_t, of the libnccl.so.2 of this process, as TensorRT's setCommunicator takes it. It is
 * borrowed: never aborted or destroyed here. Until this handle and all that was made with it is freed and done, the caller does
 * not destroy it, and does not use it during a call. Free it with dcl_communicator_free. [collective, shared] */
dcl_status_t dcl_communicator_from_nccl(void *nccl_comm, int64_t timeout_ms, dcl_communicator_t **communicator);

/* Frees a handle. [local, shared] */
dcl_status_t dcl_communicator_free(dcl_communicator_t *communicator);

/* Says good-bye: waits for every rank, so that one whose last call disagreed with the others' still learns of it, and frees the
 * handle, also with an error. Other handles on the same rank stay, and work. [collective, shared] */
dcl_status_t dcl_communicator_finalize(dcl_communicator_t *communicator);

/* This rank's number, from 0. [local, shared] */
dcl_status_t dcl_communicator_get_rank(dcl_communicator_t *communicator, int32_t *rank);

/* The number of ranks. [local, shared] */
dcl_status_t dcl_communicator_get_world_size(dcl_communicator_t *communicator, int32_t *world_size);

/* This rank's number in the communicator from which this one, perhaps over several steps, was split. Errors speak of these numbers.
 * [local, shared] */
dcl_status_t dcl_communicator_get_origin_rank(dcl_communicator_t *communicator, int32_t *rank);

/* The backend, copied out: "host" or "nccl". [local, shared] */
dcl_status_t dcl_communicator_get_backend(dcl_communicator_t *communicator, char *buffer, size_t capacity, size_t *length);

/* The number of the GPU whose memory buffers are in; -1 is host memory. [local, shared] */
dcl_status_t dcl_communicator_get_device(dcl_communicator_t *communicator, int32_t *device);

/* The time that each collective call with this handle waits for other ranks, in milliseconds. [local, shared] */
dcl_status_t dcl_communicator_get_timeout(dcl_communicator_t *communicator, int64_t *timeout_ms);

/* Another handle on the same rank, with another timeout: for one call, or for all from now on. Free it with dcl_communicator_free.
 * [local, shared] */
dcl_status_t dcl_communicator_with_timeout(dcl_communicator_t *communicator, int64_t timeout_ms, dcl_communicator_t **other);

/* Whether the communicator still works; if not, the error that ended it. [local, shared] */
dcl_status_t dcl_communicator_check(dcl_communicator_t *communicator);

/* Ends the communicator, and everything split from the same origin, for every rank: calls that wait return at once, on the other
 * ranks with a DCL_STATUS_ABORTED that names this rank and the reason. [local, shared] */
dcl_status_t dcl_communicator_abort(dcl_communicator_t *communicator, const char *reason);

/* Waits until every rank has come here. [collective, shared] */
dcl_status_t dcl_communicator_barrier(dcl_communicator_t *communicator);

/* Makes a communicator of the ranks that give the same `color`, ordered by `key` and then by rank, as ncclCommSplit does; a
 * color is 0 or more. With DCL_NO_COLOR a rank takes part in the call and gets NULL. Free it with dcl_communicator_free.
 * [collective, shared] */
dcl_status_t dcl_communicator_split(dcl_communicator_t *communicator, int32_t color, int32_t key, dcl_communicator_t **group);

/* Makes a communicator of `nb_ranks` ranks, whose order becomes the order of the new ranks. Every rank gives the same list; one
 * that is not in it gets NULL. Free it with dcl_communicator_free. [collective, shared] */
dcl_status_t dcl_communicator_new_group(dcl_communicator_t *communicator, const int64_t *ranks, int64_t nb_ranks,
                                        dcl_communicator_t **group);

/* ---------------------------------------------------------------------------------------------------------------------------------
 * 3c. Buffers
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* Zeros in symmetric memory, which all ranks reach, so that collectives on it need no copy in between; on GPUs memory of NCCL's.
 * Every rank asks for the same number of bytes. It serves in communicators split from this one too. Free it with
 * dcl_buffer_free. [collective, shared] */
dcl_status_t dcl_communicator_allocate(dcl_communicator_t *communicator, size_t byte_len, dcl_buffer_t **buffer);

/* Zeros in the memory of the GPU of this number, or with -1 in the host's. Free it with dcl_buffer_free. [local, shared] */
dcl_status_t dcl_buffer_new(int32_t device, size_t byte_len, dcl_buffer_t **buffer);

/* Frees a buffer, and its memory. Nothing that uses its address may be under way. [local, shared] */
dcl_status_t dcl_buffer_free(dcl_buffer_t *buffer);

/* The address of the first byte, always the same, aligned for every type. After a collective has failed, ask once more before
 * touching symmetric memory: that takes it, with its bytes, out of the reach of ranks that were left behind in the middle of a
 * copy. Nobody touches the memory during that call. [local, exclusive] */
dcl_status_t dcl_buffer_get_address(dcl_buffer_t *buffer, void **address);

/* The length in bytes. [local, shared] */
dcl_status_t dcl_buffer_get_byte_len(dcl_buffer_t *buffer, size_t *byte_len);

/* Copies bytes out of a buffer, wherever it is, and waits for that. [local, shared] */
dcl_status_t dcl_buffer_read(dcl_buffer_t *buffer, size_t byte_offset, void *bytes, size_t byte_len);

/* Copies bytes into a buffer, wherever it is, and waits for that. [local, exclusive] */
dcl_status_t dcl_buffer_write(dcl_buffer_t *buffer, size_t byte_offset, const void *bytes, size_t byte_len);

/* ---------------------------------------------------------------------------------------------------------------------------------
 * 3d. Streams and work
 *
 * The NULL stream is the calling thread: what is enqueued there is done when the call returns.
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* A thread of its own, which does what is enqueued in order, for communicators on the host. Free it with dcl_stream_free.
 * [local, shared] */
dcl_status_t dcl_stream_new_worker(dcl_stream_t **stream);

/* A new CUDA stream of the GPU of this number. It does not wait for the default stream. Free it with dcl_stream_free. [local,
 * shared] */
dcl_status_t dcl_stream_new_cuda(int32_t device, dcl_stream_t **stream);

/* The caller's cudaStream_t (or CUstream), of that GPU's primary context. It is borrowed: the caller destroys it when this handle
 * is freed and all that was enqueued through it is done. NULL is CUDA's legacy default stream; the per-thread one is refused. Free
 * it with dcl_stream_free.
 *
 * What is enqueued while the stream is captured is recorded into the caller's graph, and its work is finished at once. What
 * needs memory of its own has to run once before, uncaptured (DCL_STATUS_NOT_READY says so). The buffers, bound layers,
 * communicators and contexts outlive the graph, a context keeps the communicator that it had, and launches of the graph do not
 * overlap other work of the same context. [local, shared] */
dcl_status_t dcl_stream_from_cuda(void *cuda_stream, int32_t device, dcl_stream_t **stream);

/* Frees a stream. What was enqueued is still done. [local, shared] */
dcl_status_t dcl_stream_free(dcl_stream_t *stream);

/* The CUstream of a CUDA stream; NULL for a worker. [local, shared] */
dcl_status_t dcl_stream_get_cuda(dcl_stream_t *stream, void **cuda_stream);

/* Waits until everything enqueued so far is done; on the NULL stream that is nothing, and from what runs on a worker stream itself
 * an error. Returns the first error of what was enqueued without a work handle since the last time; what was so enqueued keeps its
 * communicator until then, or until the stream is freed. On a CUDA stream the rest, work with handles included, is waited for 600 s
 * at most. [waits, shared] */
dcl_status_t dcl_stream_synchronize(dcl_stream_t *stream);

/* Whether work is finished, well or not, or past its timeout, so that waiting for it ends: 1 or 0. [local, exclusive] */
dcl_status_t dcl_work_is_done(dcl_work_t *work, int32_t *is_done);

/* Waits until work is finished, and returns what became of it; so does every further call. The handle stays. What runs on a worker
 * stream cannot wait for what is behind it there, nor a plugin for work that begins when its run has ended:
 * DCL_STATUS_INVALID_ARGUMENT. [waits, exclusive] */
dcl_status_t dcl_work_wait(dcl_work_t *work);

/* Frees the handle. The work goes on, with its buffers, and its error is lost. [local, shared] */
dcl_status_t dcl_work_free(dcl_work_t *work);

/* ---------------------------------------------------------------------------------------------------------------------------------
 * 3e. Collectives, called eagerly
 *
 * Counts are NCCL's: elements of a block, which is what a rank gives to all_gather and gather, gets from reduce_scatter and scatter, sends
 * each rank in all_to_all, and the whole buffer in all_reduce, broadcast and reduce. Addresses, `stream` and `work` are as in
 * dcl_bound_layer_enqueue; a buffer that the operation does not use on this rank may be NULL. `root` is a rank of this communicator.
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* output[i] on every rank is the reduction of all ranks' input[i]. In place: the same address. [collective, shared] */
dcl_status_t dcl_all_reduce(dcl_communicator_t *communicator, const void *input, void *output, size_t count, dcl_data_type_t data_type,
                            dcl_reduce_operation_t reduce_op, dcl_stream_t *stream, dcl_work_t **work);

/* Every rank gets all inputs, one after the other: `output` has nb_ranks * count elements. In place: input = output + rank * count.
 * [collective, shared] */
dcl_status_t dcl_all_gather(dcl_communicator_t *communicator, const void *input, void *output, size_t count, dcl_data_type_t data_type,
                            dcl_stream_t *stream, dcl_work_t **work);

/* Every rank gets the root's input; the others' are not read. In place: the same address. [collective, shared] */
dcl_status_t dcl_broadcast(dcl_communicator_t *communicator, const void *input, void *output, size_t count, dcl_data_type_t data_type,
                           int32_t root, dcl_stream_t *stream, dcl_work_t **work);

/* The root gets the reduction of all inputs; the others' outputs are not written. In place: the same address. [collective,
 * shared] */
dcl_status_t dcl_reduce(dcl_communicator_t *communicator, const void *input, void *output, size_t count, dcl_data_type_t data_type,
                        dcl_reduce_operation_t reduce_op, int32_t root, dcl_stream_t *stream, dcl_work_t **work);

/* Every rank gets its block of the reduction: `input` has nb_ranks * count elements. In place: output = input + rank * count.
 * [collective, shared] */
dcl_status_t dcl_reduce_scatter(dcl_communicator_t *communicator, const void *input, void *output, size_t count,
                                dcl_data_type_t data_type, dcl_reduce_operation_t reduce_op, dcl_stream_t *stream, dcl_work_t **work);

/* Block s of every rank's output is its block of rank s's input: both have nb_ranks * count elements. Never in place.
 * [collective, shared] */
dcl_status_t dcl_all_to_all(dcl_communicator_t *communicator, const void *input, void *output, size_t count, dcl_data_type_t data_type,
                            dcl_stream_t *stream, dcl_work_t **work);

/* The root gets all inputs, one after the other: its `output` has nb_ranks * count elements; the others' are not written. In
 * place at the root: input = output + root * count. [collective, shared] */
dcl_status_t dcl_gather(dcl_communicator_t *communicator, const void *input, void *output, size_t count, dcl_data_type_t data_type,
                        int32_t root, dcl_stream_t *stream, dcl_work_t **work);

/* Every rank gets its block of the root's input, which has nb_ranks * count elements; the others' are not read. In place at the
 * root: output = input + root * count. [collective, shared] */
dcl_status_t dcl_scatter(dcl_communicator_t *communicator, const void *input, void *output, size_t count, dcl_data_type_t data_type,
                         int32_t root, dcl_stream_t *stream, dcl_work_t **work);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* DISTCOLLECTIVE_H */
