/* distcollective in C: TensorRT's DistCollective layer, networks with it, and communicators.
 * The guide is docs/src/c.md.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Ranks that a launcher has started sum an array in three calls:
 *     dcl_environment_initialize(NULL, &environment);
 *     dcl_environment_get_communicator(environment, &communicator);
 *     dcl_all_reduce(communicator, x, x, 4, DCL_DATA_TYPE_FLOAT, DCL_REDUCE_SUM, NULL, NULL);
 *
 * A call returns 0, DCL_STATUS_SUCCESS, or an error, and writes its out parameters only on success.
 * After an error, dcl_last_error_message returns its text to the thread that made the call.
 *
 * A description ends with a tag, such as [local, shared]. Its first word says how the call waits:
 * - local: for no other rank.
 * - waits: for enqueued work or for the other rank of a message, at most until the timeout.
 * - collective: for the other ranks, at most until the timeout. Every rank of the communicator
 *   makes the call, in the same order, from a thread of its own.
 * The second word says which calls may run at the same time with the same first argument, a handle:
 * - shared: any.
 * - exclusive: none. A call that overlaps another one returns DCL_STATUS_BUSY.
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

/* -------------------------------------------------------------------------------------------------
 * Values
 *
 * - A string is UTF-8 and ends with a NUL.
 * - A pointer that is not NULL is valid. The library copies what it points to, or uses it during
 *   the call only, unless a description says otherwise. An array of length 0 may be NULL.
 * - A function that copies out text or bytes takes (buffer, capacity, length). *length receives the
 *   length in bytes, without the NUL of a text; `length` may be NULL. If `buffer` is NULL, the
 *   function writes only *length. A text needs a capacity of one byte more, for the NUL.
 * - A structure begins with struct_size, the sizeof that the caller was compiled with. Initialize
 *   it with its _INIT macro, or from another language with its _init function. If a function fills
 *   the structure in, only struct_size has to be set.
 * ---------------------------------------------------------------------------------------------- */

/* The version of this header. Before 1.0 a minor version may change the ABI, so the soname has both
 * numbers: libdistcollective.so.0.1. */
#define DCL_VERSION_MAJOR 0
#define DCL_VERSION_MINOR 1
#define DCL_VERSION_PATCH 0
#define DCL_VERSION (DCL_VERSION_MAJOR * 10000 + DCL_VERSION_MINOR * 100 + DCL_VERSION_PATCH)

/* The result of a call. Every function can return DCL_STATUS_INVALID_HANDLE,
 * DCL_STATUS_INVALID_ARGUMENT, DCL_STATUS_UNSUPPORTED, DCL_STATUS_BUSY, DCL_STATUS_SYSTEM and
 * DCL_STATUS_INTERNAL. A collective call, and one that sends or receives a message, can also return
 * the errors that section 3b lists under "Failures". The descriptions name only what is particular
 * to a function. */
typedef int32_t dcl_status_t;
enum {
    DCL_STATUS_SUCCESS = 0,
    /* An argument is wrong, or arguments contradict each other: a required pointer is NULL, a
     * string is not UTF-8, an enumerator is unknown, an index or a length is out of range, no
     * tensor has the given name, or a struct_size is wrong. */
    DCL_STATUS_INVALID_ARGUMENT = 1,
    /* The handle is NULL or freed, it is of another type, or it never was a handle. */
    DCL_STATUS_INVALID_HANDLE = 2,
    /* The network, or a layer by itself, breaks at least one rule. The message lists all mistakes,
     * one on each line. */
    DCL_STATUS_INVALID_NETWORK = 3,
    /* The bytes are not a plan (or a serialized layer) of this version, or they are damaged. */
    DCL_STATUS_INVALID_PLAN = 4,
    /* A shape is outside its profile, or it breaks a layer's shape rule. */
    DCL_STATUS_INVALID_SHAPE = 5,
    /* A buffer's length, type, alignment or location does not fit, or buffers overlap. */
    DCL_STATUS_INVALID_BUFFER = 6,
    /* A layer's nb_rank, group or root does not fit the communicator. */
    DCL_STATUS_INVALID_COMMUNICATOR = 7,
    /* The caller has to do something else first: set a communicator, a shape or an address. */
    DCL_STATUS_NOT_READY = 8,
    /* This machine, device or build does not support the request; the value is one of TensorRT's
     * that this library does not have; or the object is from before the process was forked. */
    DCL_STATUS_UNSUPPORTED = 9,
    /* Another call uses the object: a call of another thread, or the call that runs this
     * callback. */
    DCL_STATUS_BUSY = 10,
    /* The caller's buffer is too small for what the function copies out. The buffer is as it was;
     * *length has been written. */
    DCL_STATUS_BUFFER_TOO_SMALL = 11,
    /* Ranks that must make the same call made different ones. */
    DCL_STATUS_DISAGREEMENT = 12,
    /* Other ranks did not make the call before the timeout. */
    DCL_STATUS_DEADLINE_EXCEEDED = 13,
    /* Another rank left the communicator, and this rank needed it. */
    DCL_STATUS_PEER_LOST = 14,
    /* Another rank failed or called dcl_communicator_abort. The message names the rank and the
     * reason. */
    DCL_STATUS_ABORTED = 15,
    /* A plugin layer failed. */
    DCL_STATUS_PLUGIN = 16,
    /* The operating system, the GPU or one of its libraries failed. */
    DCL_STATUS_SYSTEM = 17,
    /* This library has a bug. Please report it with the message. */
    DCL_STATUS_INTERNAL = 18,
    /* The interrupt callback ended the wait; see dcl_set_interrupt_callback. */
    DCL_STATUS_INTERRUPTED = 19,
    /* The work has not ended yet. Only dcl_work_wait_for returns this. */
    DCL_STATUS_PENDING = 20,
    /* The rank is not a member of the group. */
    DCL_STATUS_NOT_A_MEMBER = 21,
    /* A rank refused this run of a context or bound layer, or failed in this request. The
     * communicator still works. The message names the rank and the reason. */
    DCL_STATUS_RUN_REFUSED = 22
};

/* The type of a tensor's elements: TensorRT's DataType. TensorRT's INT4 (9), FP4 (10) and E8M0 (11)
 * are DCL_STATUS_UNSUPPORTED. */
typedef int32_t dcl_data_type_t;
enum {
    DCL_DATA_TYPE_FLOAT = 0,
    DCL_DATA_TYPE_HALF = 1,
    DCL_DATA_TYPE_INT8 = 2,
    DCL_DATA_TYPE_INT32 = 3,
    /* One byte. Any value other than 0 is true. */
    DCL_DATA_TYPE_BOOL = 4,
    DCL_DATA_TYPE_UINT8 = 5,
    /* 8-bit float with 4 exponent bits (E4M3). */
    DCL_DATA_TYPE_FP8 = 6,
    DCL_DATA_TYPE_BF16 = 7,
    DCL_DATA_TYPE_INT64 = 8,
    /* 8-bit float with 5 exponent bits (E5M2). TensorRT does not have it. */
    DCL_DATA_TYPE_FP8_E5M2 = 100,
    /* The next three are for eager calls, messages and bound layers. Networks refuse them. */
    DCL_DATA_TYPE_FLOAT64 = 101,
    DCL_DATA_TYPE_UINT32 = 102,
    DCL_DATA_TYPE_UINT64 = 103
};

/* What a collective computes: TensorRT's CollectiveOperation. The comments give the output of a
 * rank among n ranks, for an input of shape [d0, ...]. */
typedef int32_t dcl_collective_operation_t;
enum {
    /* [d0, ...]: the reduction of all inputs. */
    DCL_COLLECTIVE_ALL_REDUCE = 0,
    /* [n * d0, ...]: all inputs, in rank order. */
    DCL_COLLECTIVE_ALL_GATHER = 1,
    /* [d0, ...]: the root's input. The other ranks' inputs are not read. */
    DCL_COLLECTIVE_BROADCAST = 2,
    /* [d0, ...]: the root receives the reduction of all inputs. The other ranks' outputs are not
     * written. */
    DCL_COLLECTIVE_REDUCE = 3,
    /* [d0 / n, ...]: rank r receives block r of the reduction. d0 is a multiple of n. */
    DCL_COLLECTIVE_REDUCE_SCATTER = 4,
    /* [d0, ...]: block s of rank r's output is block r of rank s's input. d0 is a multiple of n. */
    DCL_COLLECTIVE_ALL_TO_ALL = 5,
    /* [n * d0, ...]: the root receives all inputs, in rank order. The other ranks' outputs are not
     * written. */
    DCL_COLLECTIVE_GATHER = 6,
    /* [d0 / n, ...]: rank r receives block r of the root's input. The other ranks' inputs are not
     * read. d0 is a multiple of n. */
    DCL_COLLECTIVE_SCATTER = 7
};

/* How elements are reduced: TensorRT's ReduceOperation. The host backend reduces in rank order.
 * 32-bit floats are reduced in float32. Shorter floats are widened to float32 and rounded once at
 * the end; rounding to an 8-bit float saturates. Integers wrap. For bool, SUM and MAX are "or",
 * PROD and MIN are "and". If MAX or MIN compares a NaN with a number, the result is the number. */
typedef int32_t dcl_reduce_operation_t;
enum {
    DCL_REDUCE_SUM = 0,
    DCL_REDUCE_PROD = 1,
    DCL_REDUCE_MAX = 2,
    DCL_REDUCE_MIN = 3,
    /* The sum divided by n. For integers, the wrapped sum divided by n and rounded towards zero, as
     * in NCCL. Not allowed for bool. */
    DCL_REDUCE_AVG = 4,
    /* For operations that do not reduce. */
    DCL_REDUCE_NONE = 5,
    /* Bits: of integers and bool, in eager calls and bound layers on the host. */
    DCL_REDUCE_BAND = 101,
    DCL_REDUCE_BOR = 102,
    DCL_REDUCE_BXOR = 103
};

/* How an ElementWise layer combines an element a of its first input with an element b of its second
 * one: TensorRT's ElementWiseOperation. The arithmetic is that of dcl_reduce_operation_t for two
 * ranks, also on GPUs. */
typedef int32_t dcl_elementwise_operation_t;
enum {
    DCL_ELEMENTWISE_SUM = 0,
    DCL_ELEMENTWISE_PROD = 1,
    DCL_ELEMENTWISE_MAX = 2,
    DCL_ELEMENTWISE_MIN = 3,
    /* a - b. Not allowed for bool. */
    DCL_ELEMENTWISE_SUB = 4,
    /* a / b. Floats divide as IEEE 754 says. Integers round towards zero; a division by 0 gives 0,
     * and the smallest integer divided by -1 wraps. Not allowed for bool. */
    DCL_ELEMENTWISE_DIV = 5
};

/* How far the bits of a reduction are determined. The host backend gives the same bits in each
 * case. All ranks of a reduction use the same. */
typedef int32_t dcl_determinism_t;
enum {
    /* On GPUs NCCL reduces, in an order of its own. */
    DCL_DETERMINISM_BACKEND = 0,
    /* On GPUs the result has the host's bits: NCCL moves the elements, and this library's kernels
     * reduce them in rank order. This needs more time and memory. */
    DCL_DETERMINISM_EXACT = 1
};

/* The type in which the elements of float32 tensors travel. all_reduce, reduce, reduce_scatter,
 * broadcast and all_gather have one. The numbers are those of the data types.
 *
 * Each rank's contribution, the rank's own too, is rounded once to that type, to nearest even.
 * Reductions accumulate the rounded contributions in float32 in rank order, and do not round the
 * result. broadcast and all_gather write the rounded elements on every rank, also on the root and
 * in a rank's own block. Among one rank nothing is rounded. All ranks of a call use the same type
 * and get the same bits. */
typedef int32_t dcl_wire_type_t;
enum {
    /* Elements travel as they are. */
    DCL_WIRE_TYPE_NONE = 0,
    /* A contribution x is rounded by at most 2^-11 |x| + 2^-25, and becomes infinite from 65520
     * on. */
    DCL_WIRE_TYPE_FLOAT16 = 1,
    /* A contribution x is rounded by at most 2^-8 |x| + 2^-134, and becomes infinite from
     * 3.3961776e38 on. */
    DCL_WIRE_TYPE_BFLOAT16 = 7
};

/* Whether a tensor is an input or an output of the engine: TensorRT's TensorIOMode. */
typedef int32_t dcl_tensor_io_mode_t;
enum {
    DCL_TENSOR_IO_MODE_NONE = 0,
    DCL_TENSOR_IO_MODE_INPUT = 1,
    DCL_TENSOR_IO_MODE_OUTPUT = 2
};

/* One of the three shapes of an optimization profile: TensorRT's OptProfileSelector. */
typedef int32_t dcl_opt_profile_selector_t;
enum { DCL_OPT_PROFILE_MIN = 0, DCL_OPT_PROFILE_OPT = 1, DCL_OPT_PROFILE_MAX = 2 };

/* The severity of a log message: TensorRT's ILogger::Severity. */
typedef int32_t dcl_severity_t;
enum {
    DCL_SEVERITY_ERROR = 1,
    DCL_SEVERITY_WARNING = 2,
    DCL_SEVERITY_INFO = 3,
    DCL_SEVERITY_VERBOSE = 4
};

/* Where a collective's input and output may share memory. The rules are NCCL's. */
typedef int32_t dcl_in_place_t;
enum {
    /* The input and the output must not overlap. */
    DCL_IN_PLACE_NEVER = 0,
    /* The input may be at the output's address. */
    DCL_IN_PLACE_SAME_ADDRESS = 1,
    /* The input may be a block of the output: input == output + element_offset elements. */
    DCL_IN_PLACE_INPUT_AT = 2,
    /* The output may be a block of the input: output == input + element_offset elements. */
    DCL_IN_PLACE_OUTPUT_AT = 3,
    /* Any addresses are allowed, because this rank does not use both buffers: off the root of
     * gather and scatter, and on a rank that does not take part. */
    DCL_IN_PLACE_UNUSED = 4
};

/* The maximum number of a tensor's dimensions. */
#define DCL_MAX_DIMS 8

/* Dimensions: TensorRT's Dims64. Where a dynamic dimension is allowed, it is -1. */
typedef struct dcl_dims {
    int32_t nb_dims;
    int64_t d[DCL_MAX_DIMS];
} dcl_dims_t;

/* A timeout is in milliseconds. It begins when the call is made, also for enqueued work.
 * DCL_TIMEOUT_DEFAULT stands for the communicator's timeout; for a new communicator it stands for
 * the seconds in the environment variable DCL_TIMEOUT, or 600 s if that is not set. */
#define DCL_TIMEOUT_DEFAULT (-1)

/* The color of a rank that joins no group of a split: NCCL's NCCL_SPLIT_NOCOLOR. */
#define DCL_NO_COLOR (-1)

/* Handles. A handle is not an object's address, and the library checks it: NULL, a freed handle or
 * any other number is DCL_STATUS_INVALID_HANDLE. The caller owns a handle that it receives, and
 * frees it with the function that the description names. Freeing NULL succeeds and does nothing. An
 * object keeps the objects alive that it needs, so handles may be freed in any order, even during a
 * call of another thread on the same object. */
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
typedef struct dcl_tensor_dict dcl_tensor_dict_t;

/* -------------------------------------------------------------------------------------------------
 * The library
 * ---------------------------------------------------------------------------------------------- */

/* Returns the library's version, in the form of DCL_VERSION (which is the header's).
 * [local, shared] */
uint32_t dcl_version(void);

/* Returns the library's version as text, such as "0.1.0". The string is static. [local, shared] */
const char *dcl_version_string(void);

/* Returns the name of a status, such as "DCL_STATUS_INVALID_SHAPE", or "unknown status" for any
 * other number. The string is static. [local, shared] */
const char *dcl_status_name(dcl_status_t status);

/* Copies the message of this thread's last failed call to `buffer` and returns its length in bytes
 * without the NUL, or 0 if no call has failed. The message names the rank, the layer, the rule,
 * what was expected and what came, as far as they are known. If it is longer than `capacity` - 1
 * bytes, it is cut after a whole character. `buffer` may be NULL if `capacity` is 0.
 * [local, shared] */
size_t dcl_last_error_message(char *buffer, size_t capacity);

/* Sets this thread's last error to `message`, without a rank. A plugin's callback calls it before
 * it returns `status`.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if `status` is DCL_STATUS_SUCCESS. [local, shared] */
dcl_status_t dcl_set_last_error(dcl_status_t status, const char *message);

/* Returns the communicator rank on which this thread's last failed call failed, or -1 if it is not
 * known. [local, shared] */
int32_t dcl_last_error_rank(void);

/* Returns the name of an element type, such as "bfloat16", or NULL for any other number. The string
 * is static. [local, shared] */
const char *dcl_data_type_name(dcl_data_type_t data_type);

/* Returns the size of an element in bytes, or 0 for a number that is not a type. The size is also
 * the alignment that buffers of the type need. [local, shared] */
size_t dcl_data_type_size(dcl_data_type_t data_type);

/* Returns the name of an operation, such as "all_reduce", or NULL for any other number. The string
 * is static. [local, shared] */
const char *dcl_collective_operation_name(dcl_collective_operation_t operation);

/* Returns the name of a reduce operation, such as "sum", "none" for DCL_REDUCE_NONE, or NULL for
 * any other number. The string is static. [local, shared] */
const char *dcl_reduce_operation_name(dcl_reduce_operation_t reduce_op);

/* Receives one message of the log. `message` is valid during the call. Several threads, of the
 * library or of the caller, may call the callback at once. It must not call this library, and must
 * not leave by an exception or longjmp. */
typedef void (*dcl_log_callback_t)(dcl_severity_t severity, const char *message, void *user_data);

/* Sends log messages up to the severity `most_verbose` to `callback`: DCL_SEVERITY_WARNING means
 * warnings and errors. NULL removes the callback. Without a callback the log goes to stderr, at the
 * level in the environment variable DCL_LOG (off, error, warn, info, debug or trace); if that is
 * not set, warnings and errors go there.
 *
 * The function waits for threads that are inside the previous callback, so the caller must not hold
 * a lock that the callback needs. It may free the previous `user_data` afterwards. Until then both
 * must stay valid, also while the program exits, because threads of the library run on after main
 * returns.
 *
 * Errors: DCL_STATUS_BUSY if the callback itself makes the call. [local, shared] */
dcl_status_t dcl_set_log_callback(dcl_log_callback_t callback, void *user_data,
                                  dcl_severity_t most_verbose);

/* Returns 0 if the thread continues to wait, and any other value to end the wait. The callback must
 * not leave by an exception or longjmp. */
typedef int32_t (*dcl_interrupt_callback_t)(void *user_data);

/* Lets a host language end waits: a thread that waits in a call of this library calls `callback` at
 * most every 100 ms. NULL removes the callback. Threads of the library never call it. Several
 * threads may call it at once. A forked child has no callback.
 *
 * If the callback ends the wait:
 * - A blocking call fails with DCL_STATUS_INTERRUPTED, and its communicator ends. Other ranks get
 *   DCL_STATUS_ABORTED with the reason.
 * - dcl_environment_initialize and the functions that create communicators fail with
 *   DCL_STATUS_INTERRUPTED. Ranks that have met this one fail too.
 * - dcl_work_wait, dcl_work_wait_for and dcl_stream_synchronize return DCL_STATUS_INTERRUPTED. The
 *   work continues, and the caller can wait for it again.
 *
 * The callback may query and free objects, and call dcl_communicator_abort. If it makes a call that
 * would wait for other ranks or for work, that call returns DCL_STATUS_INVALID_ARGUMENT. The handle
 * of the call that waits may be in exclusive use.
 *
 * The function waits for threads that are inside the previous callback, so the caller must not hold
 * a lock that the callback needs, such as Python's. It may free the previous `user_data`
 * afterwards.
 *
 * Errors: DCL_STATUS_BUSY if the callback itself makes the call. [local, shared] */
dcl_status_t dcl_set_interrupt_callback(dcl_interrupt_callback_t callback, void *user_data);

/* -------------------------------------------------------------------------------------------------
 * 1a. The network
 *
 * A network owns its tensors and layers, and frees them. A layer of dcl_dist_collective_new,
 * dcl_dist_collective_clone or dcl_dist_collective_deserialize belongs to no network.
 * ---------------------------------------------------------------------------------------------- */

/* Creates a network without tensors and layers: TensorRT's INetworkDefinition. Free it with
 * dcl_network_free. [local, shared] */
dcl_status_t dcl_network_new(dcl_network_t **network);

/* Frees a network with its tensors and layers, without waiting for calls on other threads. Engines
 * that were built from it stay valid. [local, shared] */
dcl_status_t dcl_network_free(dcl_network_t *network);

/* Says which rank of how many the network is for, because its constants or plugins have that rank's
 * weights. dcl_execution_context_set_communicator then refuses a communicator on which this process
 * is another rank, or which has another number of ranks. Plans keep it. Without this call a network
 * is for every rank.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if there is no such rank. [local, exclusive] */
dcl_status_t dcl_network_for_rank(dcl_network_t *network, int32_t rank, int32_t world_size);

/* Adds an input: TensorRT's addInput. An input with a dimension of -1 needs an optimization
 * profile, and dcl_execution_context_set_input_shapes sets the dimension. [local, exclusive] */
dcl_status_t dcl_network_add_input(dcl_network_t *network, const char *name,
                                   dcl_data_type_t data_type, const dcl_dims_t *dims,
                                   dcl_tensor_t **tensor);

/* Sets the smallest, the usual and the largest shape of an input in optimization profile 0, and
 * adds that profile if the network has none. A network with one profile needs no other call.
 *
 * Errors: as dcl_network_set_profile_shapes. [local, exclusive] */
dcl_status_t dcl_network_set_optimization_profile(dcl_network_t *network, dcl_tensor_t *input,
                                                  const dcl_dims_t *min, const dcl_dims_t *opt,
                                                  const dcl_dims_t *max);

/* Adds an optimization profile: TensorRT's addOptimizationProfile. `*profile_index` receives its
 * index, 0 for the first. A profile needs the shapes of all inputs that have dimensions of -1.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the network has 64 profiles. [local, exclusive] */
dcl_status_t dcl_network_add_optimization_profile(dcl_network_t *network, int32_t *profile_index);

/* Sets the smallest, the usual and the largest shape of an input in a profile: TensorRT's
 * IOptimizationProfile::setDimensions.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if there is no such profile, it has shapes for the input
 * already, a shape does not fit the input's dimensions, or the tensor belongs to another network.
 * [local, exclusive] */
dcl_status_t dcl_network_set_profile_shapes(dcl_network_t *network, int32_t profile_index,
                                            dcl_tensor_t *input, const dcl_dims_t *min,
                                            const dcl_dims_t *opt, const dcl_dims_t *max);

/* Returns the number of optimization profiles that were added. [local, shared] */
dcl_status_t dcl_network_get_nb_optimization_profiles(dcl_network_t *network,
                                                      int32_t *nb_profiles);

/* Adds a DistCollective layer: TensorRT's addDistCollective.
 * - `reduce_op` is DCL_REDUCE_NONE if the operation does not reduce.
 * - `root` is -1 if the operation has no root. Any other value is then ignored, and logged as a
 *   warning.
 * - `groups` is an array of `group_size` communicator ranks in group order. If `group_size` is 0,
 *   `groups` is not read, and all ranks take part; if they are more than one, call
 *   dcl_layer_set_nb_rank too.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if `reduce_op` is missing or given against the operation, the
 * root is missing, a rank is negative or occurs twice, or the average of bool is requested.
 * dcl_engine_build makes all other checks. [local, exclusive] */
dcl_status_t dcl_network_add_dist_collective(dcl_network_t *network, dcl_tensor_t *input,
                                             dcl_collective_operation_t operation,
                                             dcl_reduce_operation_t reduce_op, int64_t root,
                                             const int64_t *groups, int64_t group_size,
                                             dcl_layer_t **layer);

/* Adds a Shuffle layer: TensorRT's addShuffle. It applies a transpose, a reshape and a second
 * transpose. A step whose pointer is NULL is left out.
 * - A transpose is a permutation: dimension i of its result is dimension d[i] of its input.
 * - In the reshape, a 0 copies the dimension of the same index after the first transpose. At most
 *   one dimension is -1, and the library infers it.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if a transpose is not a permutation, or two dimensions of the
 * reshape are -1. dcl_engine_build checks that they fit the input. [local, exclusive] */
dcl_status_t dcl_network_add_shuffle(dcl_network_t *network, dcl_tensor_t *input,
                                     const dcl_dims_t *first_transpose, const dcl_dims_t *reshape,
                                     const dcl_dims_t *second_transpose, dcl_layer_t **layer);

/* Adds a Cast layer: TensorRT's addCast. A float rounds to the nearest value, ties to even; to an
 * 8-bit float it saturates. A float becomes an integer by truncation and saturation, and NaN
 * becomes 0. A value becomes true if it is not 0. An integer wraps if the new type is too small.
 * [local, exclusive] */
dcl_status_t dcl_network_add_cast(dcl_network_t *network, dcl_tensor_t *input,
                                  dcl_data_type_t to_type, dcl_layer_t **layer);

/* Adds an ElementWise layer: TensorRT's addElementWise. Its output has the elements a operation b.
 * Both inputs have the same type and the same number of dimensions. A dimension that is 1 in one of
 * them is broadcast to the other's.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the types differ, or the type is bool and the operation is
 * DCL_ELEMENTWISE_SUB or DCL_ELEMENTWISE_DIV. dcl_engine_build checks the dimensions.
 * [local, exclusive] */
dcl_status_t dcl_network_add_elementwise(dcl_network_t *network, dcl_tensor_t *a, dcl_tensor_t *b,
                                         dcl_elementwise_operation_t operation,
                                         dcl_layer_t **layer);

/* Adds a Concatenation layer: TensorRT's addConcatenation and setAxis. It joins `nb_inputs`
 * tensors, at least one, along dimension `axis`. They have the same type, and the same dimensions
 * except that one.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if there is no input, the types differ, or no tensor has such
 * an axis. dcl_engine_build checks the dimensions. [local, exclusive] */
dcl_status_t dcl_network_add_concatenation(dcl_network_t *network, dcl_tensor_t *const *inputs,
                                           int32_t nb_inputs, int32_t axis, dcl_layer_t **layer);

/* Adds a Slice layer: TensorRT's addSlice in its default mode. Along each dimension the output has
 * `size` elements, which are `stride` elements apart in the input, from index `start` on. A stride
 * is any number, also negative or 0.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the three have different numbers of dimensions, or a start
 * or a size is negative. dcl_engine_build checks that all indices are inside the input.
 * [local, exclusive] */
dcl_status_t dcl_network_add_slice(dcl_network_t *network, dcl_tensor_t *input,
                                   const dcl_dims_t *start, const dcl_dims_t *size,
                                   const dcl_dims_t *stride, dcl_layer_t **layer);

/* Adds an Identity layer: TensorRT's addIdentity. It copies its input. TensorRT's can also convert
 * to another type; here a Cast layer does that. [local, exclusive] */
dcl_status_t dcl_network_add_identity(dcl_network_t *network, dcl_tensor_t *input,
                                      dcl_layer_t **layer);

/* Adds a constant tensor: TensorRT's addConstant. The library copies `byte_len` bytes of `weights`,
 * which are the elements of a tensor of type `data_type` and dimensions `dims`.
 *
 * Errors: DCL_STATUS_INVALID_BUFFER if `byte_len` is not the size of such a tensor.
 * [local, exclusive] */
dcl_status_t dcl_network_add_constant(dcl_network_t *network, dcl_data_type_t data_type,
                                      const dcl_dims_t *dims, const void *weights, size_t byte_len,
                                      dcl_layer_t **layer);

/* Marks a tensor as an output and names it: TensorRT's markOutput. [local, exclusive] */
dcl_status_t dcl_network_mark_output(dcl_network_t *network, dcl_tensor_t *tensor,
                                     const char *name);

/* Returns the number of layers. [local, shared] */
dcl_status_t dcl_network_get_nb_layers(dcl_network_t *network, int32_t *nb_layers);

/* Returns a layer by its index, in the order in which the layers were added. Each call returns the
 * same handle. [local, shared] */
dcl_status_t dcl_network_get_layer(dcl_network_t *network, int32_t index, dcl_layer_t **layer);

/* Returns the number of inputs. [local, shared] */
dcl_status_t dcl_network_get_nb_inputs(dcl_network_t *network, int32_t *nb_inputs);

/* Returns an input by its index, in the order in which the inputs were added. Each call returns the
 * same handle. [local, shared] */
dcl_status_t dcl_network_get_input(dcl_network_t *network, int32_t index, dcl_tensor_t **tensor);

/* Returns the number of outputs. [local, shared] */
dcl_status_t dcl_network_get_nb_outputs(dcl_network_t *network, int32_t *nb_outputs);

/* Returns an output by its index, in the order in which the outputs were marked. Each call returns
 * the same handle. [local, shared] */
dcl_status_t dcl_network_get_output(dcl_network_t *network, int32_t index, dcl_tensor_t **tensor);

/* -------------------------------------------------------------------------------------------------
 * 1b. Tensors and layers
 *
 * An [exclusive] call of this section needs exclusive use of the whole network, which it changes.
 * dcl_dist_collective_* returns DCL_STATUS_INVALID_ARGUMENT for a layer of another kind. The
 * attributes of other layers do not change after they were added; dcl_engine_inspect shows them.
 * ---------------------------------------------------------------------------------------------- */

/* Copies out a tensor's name. [local, shared] */
dcl_status_t dcl_tensor_get_name(dcl_tensor_t *tensor, char *buffer, size_t capacity,
                                 size_t *length);

/* Sets a tensor's name. An execution context finds inputs and outputs by their names.
 * [local, exclusive] */
dcl_status_t dcl_tensor_set_name(dcl_tensor_t *tensor, const char *name);

/* Returns the type of a tensor's elements. It follows from the layers as they are now.
 * [local, shared] */
dcl_status_t dcl_tensor_get_type(dcl_tensor_t *tensor, dcl_data_type_t *data_type);

/* Frees a layer of dcl_dist_collective_new, dcl_dist_collective_clone or
 * dcl_dist_collective_deserialize.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the layer belongs to a network, which frees it.
 * [local, shared] */
dcl_status_t dcl_layer_free(dcl_layer_t *layer);

/* Copies out a layer's kind: an operation's name ("all_reduce" to "scatter"), "shuffle", "cast",
 * "elementwise", "concatenation", "slice", "identity", "constant" or a plugin's type name.
 * [local, shared] */
dcl_status_t dcl_layer_get_kind(dcl_layer_t *layer, char *buffer, size_t capacity, size_t *length);

/* Copies out a layer's name. Error messages and dcl_engine_inspect contain it. A network names a
 * layer that the caller does not name. [local, shared] */
dcl_status_t dcl_layer_get_name(dcl_layer_t *layer, char *buffer, size_t capacity, size_t *length);

/* Sets a layer's name. The names in a network must differ. [local, exclusive] */
dcl_status_t dcl_layer_set_name(dcl_layer_t *layer, const char *name);

/* Copies out a layer's metadata, a text of the caller that the library does not interpret.
 * [local, shared] */
dcl_status_t dcl_layer_get_metadata(dcl_layer_t *layer, char *buffer, size_t capacity,
                                    size_t *length);

/* Sets a layer's metadata. [local, exclusive] */
dcl_status_t dcl_layer_set_metadata(dcl_layer_t *layer, const char *metadata);

/* Returns the number of ranks that take part. If it was not set, it is the group's length, or 1
 * without groups. [local, shared] */
dcl_status_t dcl_layer_get_nb_rank(dcl_layer_t *layer, int32_t *nb_rank);

/* Sets the number of ranks that take part: the group's length, or without groups the communicator's
 * size. Without groups, 1 copies the input on every rank. If it is not set, there are no groups and
 * the communicator has several ranks, dcl_execution_context_set_communicator returns
 * DCL_STATUS_INVALID_COMMUNICATOR. [local, exclusive] */
dcl_status_t dcl_layer_set_nb_rank(dcl_layer_t *layer, int32_t nb_rank);

/* Returns the number of inputs.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the layer belongs to no network. [local, shared] */
dcl_status_t dcl_layer_get_nb_inputs(dcl_layer_t *layer, int32_t *nb_inputs);

/* Returns an input by its index.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the layer belongs to no network. [local, shared] */
dcl_status_t dcl_layer_get_input(dcl_layer_t *layer, int32_t index, dcl_tensor_t **tensor);

/* Replaces an input: TensorRT's setInput. dcl_engine_build checks types, shapes and cycles.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the layer belongs to no network, or the tensor to another
 * one. [local, exclusive] */
dcl_status_t dcl_layer_set_input(dcl_layer_t *layer, int32_t index, dcl_tensor_t *tensor);

/* Returns the number of outputs.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the layer belongs to no network. [local, shared] */
dcl_status_t dcl_layer_get_nb_outputs(dcl_layer_t *layer, int32_t *nb_outputs);

/* Returns an output by its index.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the layer belongs to no network. [local, shared] */
dcl_status_t dcl_layer_get_output(dcl_layer_t *layer, int32_t index, dcl_tensor_t **tensor);

/* Returns the operation of a DistCollective layer. [local, shared] */
dcl_status_t dcl_dist_collective_get_collective_operation(dcl_layer_t *layer,
                                                          dcl_collective_operation_t *operation);

/* Sets the operation. The reduce operation and the root do not change: dcl_engine_build and
 * dcl_dist_collective_bind check that they fit the operation. [local, exclusive] */
dcl_status_t dcl_dist_collective_set_collective_operation(dcl_layer_t *layer,
                                                          dcl_collective_operation_t operation);

/* Returns the reduce operation, or DCL_REDUCE_NONE. [local, shared] */
dcl_status_t dcl_dist_collective_get_reduce_op(dcl_layer_t *layer,
                                               dcl_reduce_operation_t *reduce_op);

/* Sets the reduce operation. [local, exclusive] */
dcl_status_t dcl_dist_collective_set_reduce_op(dcl_layer_t *layer,
                                               dcl_reduce_operation_t reduce_op);

/* Returns how far the bits of the layer's reduction are determined. [local, shared] */
dcl_status_t dcl_dist_collective_get_determinism(dcl_layer_t *layer,
                                                 dcl_determinism_t *determinism);

/* Sets how far the bits of the reduction are determined. The stricter one of the layer's and the
 * communicator's determinism counts. It has no effect if the operation does not reduce.
 * [local, exclusive] */
dcl_status_t dcl_dist_collective_set_determinism(dcl_layer_t *layer,
                                                 dcl_determinism_t determinism);

/* Returns the type in which float32 elements travel, or DCL_WIRE_TYPE_NONE. [local, shared] */
dcl_status_t dcl_dist_collective_get_wire_type(dcl_layer_t *layer, dcl_wire_type_t *wire_type);

/* Sets the type in which float32 elements travel. TensorRT has no such attribute. dcl_engine_build
 * and dcl_dist_collective_bind check that the operation has one and that the tensor is float32.
 * [local, exclusive] */
dcl_status_t dcl_dist_collective_set_wire_type(dcl_layer_t *layer, dcl_wire_type_t wire_type);

/* Returns the root, or -1 if there is none. [local, shared] */
dcl_status_t dcl_dist_collective_get_root(dcl_layer_t *layer, int64_t *root);

/* Sets the root; -1 means none. It is a communicator rank that takes part in the layer, or with a
 * partition a rank within each group. The layer keeps a root that its operation does not use.
 * [local, exclusive] */
dcl_status_t dcl_dist_collective_set_root(dcl_layer_t *layer, int64_t root);

/* Copies out the ranks of all groups, one group after the other. *nb_groups receives 0 if all ranks
 * take part, 1 for one group, and the number of groups for a partition. *group_size receives the
 * number of ranks in each group. `capacity` is a number of ranks; the function needs *nb_groups *
 * *group_size. If `groups` is NULL, the function writes only the two numbers.
 *
 * Errors: DCL_STATUS_BUFFER_TOO_SMALL if the capacity is too small. Then the function writes
 * nothing. [local, shared] */
dcl_status_t dcl_dist_collective_get_groups(dcl_layer_t *layer, int64_t *groups, size_t capacity,
                                            int64_t *nb_groups, int64_t *group_size);

/* Sets one group of `group_size` communicator ranks. If `group_size` is 0, all ranks take part. The
 * root's number does not change; it is a communicator rank from then on.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if a rank is negative or occurs twice. [local, exclusive] */
dcl_status_t dcl_dist_collective_set_groups(dcl_layer_t *layer, const int64_t *groups,
                                            int64_t group_size);

/* Sets a partition: `nb_groups` disjoint groups of `group_size` communicator ranks each, one group
 * after the other in `groups`. TensorRT does not have it. With it one network serves every rank of
 * a mesh. The groups need not contain every rank. The root's number does not change; it is a rank
 * within each group from then on.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if a number is less than 1, or a rank is negative or occurs
 * twice. [local, exclusive] */
dcl_status_t dcl_dist_collective_set_partition(dcl_layer_t *layer, const int64_t *groups,
                                               int64_t nb_groups, int64_t group_size);

/* -------------------------------------------------------------------------------------------------
 * 1c. Plugins: layers that the caller implements, so that a network can compute between
 * collectives
 * ---------------------------------------------------------------------------------------------- */

/* The maximum number of a plugin's inputs, and of its outputs. */
#define DCL_MAX_PLUGIN_TENSORS 16

/* A tensor in one run of a plugin, which gets a pointer to each: later versions may add fields. */
typedef struct dcl_plugin_tensor {
    /* In the context's memory: the host's, or that of its GPU. Aligned to the element. */
    void *address;
    size_t byte_len;
    dcl_data_type_t data_type;
    dcl_dims_t dims;
} dcl_plugin_tensor_t;

/* A plugin: TensorRT's IPluginV3, with the callbacks of all its phases in one structure.
 *
 * Several threads that build or run a network may call the callbacks at once. A callback returns a
 * status. It must not leave by an exception or longjmp. It may call this library, but it must not
 * use the context or the stream that runs it, or wait for work that is behind it in a stream.
 * Collective calls of `enqueue` belong to the run if it makes them on its own thread, and run after
 * the run on another thread. It cannot enqueue work for those communicators on a worker stream:
 * DCL_STATUS_INVALID_ARGUMENT.
 *
 * If a callback returns an error, the call that needed it returns DCL_STATUS_PLUGIN;
 * dcl_engine_build returns DCL_STATUS_INVALID_NETWORK. The message contains the callback's last
 * error, of a call of this library or of dcl_set_last_error, if that has the same status. */
typedef struct dcl_plugin {
    size_t struct_size;
    /* The type's name in plans and error messages. The library copies it. */
    const char *type_name;
    /* The type's version; NULL means "1". A plan can be read only by the same version. The library
     * copies it. */
    const char *version;
    /* The first argument of every callback. It must stay valid until `destroy` is called. */
    void *user_data;
    int32_t nb_outputs;
    /* Not 0: `enqueue` can compute on a GPU. 0: the network cannot run on GPUs. */
    int32_t runs_on_cuda;
    /* Writes the types of the outputs. */
    dcl_status_t (*get_output_data_types)(void *user_data, const dcl_data_type_t *inputs,
                                          int32_t nb_inputs, dcl_data_type_t *outputs,
                                          int32_t nb_outputs);
    /* Writes the shapes of the outputs. No dimension of an input is -1. */
    dcl_status_t (*get_output_shapes)(void *user_data, const dcl_dims_t *inputs, int32_t nb_inputs,
                                      dcl_dims_t *outputs, int32_t nb_outputs);
    /* Writes every element of every output. On a GPU it enqueues the kernels on `cuda_stream` and
     * does not wait for them; on the host `cuda_stream` is NULL. An error ends the communicator,
     * and the other ranks get an error that names this layer. */
    dcl_status_t (*enqueue)(void *user_data, const dcl_plugin_tensor_t *const *inputs,
                            int32_t nb_inputs, const dcl_plugin_tensor_t *const *outputs,
                            int32_t nb_outputs, void *cuda_stream);
    /* Copies out the bytes that a plan stores, by (buffer, capacity, length). If it is NULL,
     * dcl_engine_serialize fails. */
    dcl_status_t (*serialize)(void *user_data, void *buffer, size_t capacity, size_t *length);
    /* Called once, when the library no longer needs the plugin, by the thread that frees the last
     * object that uses it. May be NULL. */
    void (*destroy)(void *user_data);
} dcl_plugin_t;
#define DCL_PLUGIN_INIT {sizeof(dcl_plugin_t), NULL, NULL, NULL, 1, 0, NULL, NULL, NULL, NULL, NULL}

/* Writes what DCL_PLUGIN_INIT has to a structure of `struct_size` bytes. [local, shared] */
dcl_status_t dcl_plugin_init(dcl_plugin_t *plugin, size_t struct_size);

/* Adds a plugin layer with `nb_inputs` inputs: TensorRT's addPluginV3. On success the library owns
 * the plugin, and calls its `destroy` when no network, engine or context needs it any more. If the
 * call fails, the caller still owns the plugin.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if a required callback or the type name is NULL, or there are
 * more than DCL_MAX_PLUGIN_TENSORS inputs or outputs; DCL_STATUS_PLUGIN if a callback fails.
 * [local, exclusive] */
dcl_status_t dcl_network_add_plugin(dcl_network_t *network, const char *name,
                                    dcl_tensor_t *const *inputs, int32_t nb_inputs,
                                    const dcl_plugin_t *plugin, dcl_layer_t **layer);

/* Creates plugins from the bytes that a plan stores: TensorRT's IPluginCreatorV3One. */
typedef struct dcl_plugin_creator {
    size_t struct_size;
    /* The type and version of the plugins that it creates. A `version` of NULL means "1". */
    const char *type_name;
    const char *version;
    void *user_data;
    /* Fills in `plugin`, which comes as DCL_PLUGIN_INIT has it, from the bytes that the plugin's
     * `serialize` wrote. The plugin has the type and version above. If `create` returns success,
     * the library owns the plugin and calls its `destroy`, also if the rest of the call fails. */
    dcl_status_t (*create)(void *user_data, const void *bytes, size_t byte_len,
                           dcl_plugin_t *plugin);
} dcl_plugin_creator_t;
#define DCL_PLUGIN_CREATOR_INIT {sizeof(dcl_plugin_creator_t), NULL, NULL, NULL, NULL}

/* Writes what DCL_PLUGIN_CREATOR_INIT has to a structure of `struct_size` bytes. [local, shared] */
dcl_status_t dcl_plugin_creator_init(dcl_plugin_creator_t *creator, size_t struct_size);

/* -------------------------------------------------------------------------------------------------
 * 1d. The engine
 * ---------------------------------------------------------------------------------------------- */

/* Validates a network, plans its memory and returns an immutable engine: TensorRT's IBuilder and
 * ICudaEngine. The network does not change. Free the engine with dcl_engine_free.
 *
 * Errors: DCL_STATUS_INVALID_NETWORK if the network breaks a rule. The message lists all mistakes;
 * each names its layer and rule. [local, shared] */
dcl_status_t dcl_engine_build(dcl_network_t *network, dcl_engine_t **engine);

/* Frees an engine. Its contexts stay valid. [local, shared] */
dcl_status_t dcl_engine_free(dcl_engine_t *engine);

/* Copies out the engine as a plan. The same network gives the same bytes on every rank.
 *
 * Errors: DCL_STATUS_PLUGIN if a plugin's `serialize` fails, DCL_STATUS_UNSUPPORTED if it is NULL.
 * [local, shared] */
dcl_status_t dcl_engine_serialize(dcl_engine_t *engine, void *buffer, size_t capacity,
                                  size_t *length);

/* Reads a plan: TensorRT's deserializeCudaEngine. The library checks every rule, so the bytes may
 * come from an untrusted source. It creates the plan's plugins with the `nb_creators` elements of
 * `creators`, which it uses during the call only. Free the engine with dcl_engine_free.
 *
 * Errors: DCL_STATUS_INVALID_PLAN if the bytes are not a plan of this version, or a plugin has no
 * creator; DCL_STATUS_PLUGIN if a creator fails. [local, shared] */
dcl_status_t dcl_engine_deserialize(const void *plan, size_t byte_len,
                                    const dcl_plugin_creator_t *creators, int32_t nb_creators,
                                    dcl_engine_t **engine);

/* Copies out the engine's tensors, layers, schedule and memory as JSON: TensorRT's
 * IEngineInspector. [local, shared] */
dcl_status_t dcl_engine_inspect(dcl_engine_t *engine, char *buffer, size_t capacity,
                                size_t *length);

/* Copies out a short text, such as "8c1f02aa", that differs between engines that compute different
 * things. [local, shared] */
dcl_status_t dcl_engine_get_fingerprint(dcl_engine_t *engine, char *buffer, size_t capacity,
                                        size_t *length);

/* Returns the number of warnings: what the build allowed but the caller should check.
 * [local, shared] */
dcl_status_t dcl_engine_get_nb_warnings(dcl_engine_t *engine, int32_t *nb_warnings);

/* Copies out a warning by its index. [local, shared] */
dcl_status_t dcl_engine_get_warning(dcl_engine_t *engine, int32_t index, char *buffer,
                                    size_t capacity, size_t *length);

/* Returns the number of inputs and outputs together. [local, shared] */
dcl_status_t dcl_engine_get_nb_io_tensors(dcl_engine_t *engine, int32_t *nb_tensors);

/* Copies out the name of an input or output by its index. The inputs come first, in the order in
 * which they were added, then the outputs, in the order in which they were marked.
 * [local, shared] */
dcl_status_t dcl_engine_get_io_tensor_name(dcl_engine_t *engine, int32_t index, char *buffer,
                                           size_t capacity, size_t *length);

/* Returns whether a tensor is an input or an output. DCL_TENSOR_IO_MODE_NONE means that neither has
 * this name. [local, shared] */
dcl_status_t dcl_engine_get_tensor_io_mode(dcl_engine_t *engine, const char *name,
                                           dcl_tensor_io_mode_t *mode);

/* Returns the type of an input or output. [local, shared] */
dcl_status_t dcl_engine_get_tensor_data_type(dcl_engine_t *engine, const char *name,
                                             dcl_data_type_t *data_type);

/* Returns the dimensions of an input or output. A dimension that depends on input shapes is -1.
 * [local, shared] */
dcl_status_t dcl_engine_get_tensor_shape(dcl_engine_t *engine, const char *name, dcl_dims_t *dims);

/* Returns the number of optimization profiles: TensorRT's getNbOptimizationProfiles. It is 1 for a
 * network to which none was added. [local, shared] */
dcl_status_t dcl_engine_get_nb_optimization_profiles(dcl_engine_t *engine, int32_t *nb_profiles);

/* Returns the smallest, the usual or the largest shape of an input or output in a profile:
 * TensorRT's getProfileShape. An output's shape follows from the inputs'.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if there is no such tensor, profile or selector.
 * [local, shared] */
dcl_status_t dcl_engine_get_profile_shape(dcl_engine_t *engine, const char *name,
                                          int32_t profile_index,
                                          dcl_opt_profile_selector_t selector, dcl_dims_t *dims);

/* -------------------------------------------------------------------------------------------------
 * 1e. The execution context
 * ---------------------------------------------------------------------------------------------- */

/* How a context runs. */
typedef struct dcl_execution_context_options {
    size_t struct_size;
    /* All ranks set the same value. It has no effect on the host.
     * 0: no run is recorded.
     * 1: the second run with the same shapes and addresses is recorded as a CUDA graph, and later
     * runs replay it. A context keeps several graphs, so addresses may alternate. If one rank has
     * bound new addresses for a run that another replays, every rank gets
     * DCL_STATUS_DISAGREEMENT. Runs on memory that neither cudaMalloc nor
     * dcl_communicator_allocate has made are not recorded. Ranks of several machines, or of an
     * ncclComm_t of the caller's, do not agree on graphs, and record nothing.
     * 2: as 1, and such ranks record too. If they differ, they get DCL_STATUS_DISAGREEMENT, wait
     * until the timeout, or compute wrong results. */
    int32_t cuda_graph;
    /* 0. */
    int32_t reserved;
} dcl_execution_context_options_t;
#define DCL_EXECUTION_CONTEXT_OPTIONS_INIT {sizeof(dcl_execution_context_options_t), 0, 0}

/* Writes what DCL_EXECUTION_CONTEXT_OPTIONS_INIT has to a structure of `struct_size` bytes.
 * [local, shared] */
dcl_status_t dcl_execution_context_options_init(dcl_execution_context_options_t *options,
                                                size_t struct_size);

/* Creates a context that runs an engine in memory of its own: TensorRT's createExecutionContext.
 * `options` may be NULL. Free the context with dcl_execution_context_free. [local, shared] */
dcl_status_t dcl_engine_create_execution_context(dcl_engine_t *engine,
                                                 const dcl_execution_context_options_t *options,
                                                 dcl_execution_context_t **context);

/* Frees a context. Enqueued runs continue. [local, shared] */
dcl_status_t dcl_execution_context_free(dcl_execution_context_t *context);

/* Sets the communicator on which the layers run: TensorRT's setCommunicator. The ranks compare the
 * collective calls of their plans once: operations, reduce operations, roots, participants, types
 * and shapes. The context keeps the communicator alive. Enqueued runs keep the previous one.
 *
 * Errors: DCL_STATUS_INVALID_COMMUNICATOR if a layer's ranks do not fit the communicator, on this
 * rank or another one; DCL_STATUS_DISAGREEMENT if the plans differ, with the first layer that
 * differs and each rank's call. After these two errors no rank has set the communicator, and the
 * communicator still works. [collective, exclusive] */
dcl_status_t dcl_execution_context_set_communicator(dcl_execution_context_t *context,
                                                    dcl_communicator_t *communicator);

/* Sets the time that a run may take from the moment at which it is enqueued. DCL_TIMEOUT_DEFAULT
 * means the communicator's timeout. A run that still waits for other ranks then fails with
 * DCL_STATUS_DEADLINE_EXCEEDED. [local, exclusive] */
dcl_status_t dcl_execution_context_set_timeout(dcl_execution_context_t *context,
                                               int64_t timeout_ms);

/* How long one layer took in one run on this rank. */
typedef struct dcl_layer_time {
    /* The layer's name. Layers that NCCL runs as one group are one entry, with all names. So is a
     * run that was recorded as a CUDA graph or replayed one: "CUDA graph". */
    const char *layer;
    /* When the layer began, in nanoseconds of CLOCK_MONOTONIC. */
    int64_t begin_ns;
    /* From the begin to the end, in nanoseconds. */
    int64_t duration_ns;
    /* The part of it in which this rank waited for other ranks, in nanoseconds: until they came,
     * or had read its buffers. On GPUs it is -1: NCCL waits inside its kernels. */
    int64_t wait_ns;
    /* The bytes of the inputs that the layer reads on this rank. */
    uint64_t input_bytes;
    /* The bytes of the outputs that it writes on this rank. */
    uint64_t output_bytes;
} dcl_layer_time_t;

/* Receives the time of one layer: the reportLayerTime of TensorRT's IProfiler. `time` is valid
 * during the call, which is made on the thread that runs the layers. The callback must not use the
 * context or its communicator, and must not leave by an exception or longjmp. */
typedef void (*dcl_profiler_callback_t)(const dcl_layer_time_t *time, void *user_data);

/* Sends the time of each layer to `callback`, after each run on this rank that succeeds: TensorRT's
 * setProfiler. NULL removes the callback. Both arguments must stay valid until another callback is
 * set, or the context is freed, and the runs have ended that were enqueued before. On a CUDA stream
 * dcl_execution_context_enqueue then waits for the end of the run, as TensorRT's enqueueV3 does; a
 * run that the caller captures is not measured. [local, exclusive] */
dcl_status_t dcl_execution_context_set_profiler(dcl_execution_context_t *context,
                                                dcl_profiler_callback_t callback, void *user_data);

/* Chooses the optimization profile by its index, and forgets the shapes of the inputs that have
 * dimensions of -1: TensorRT's setOptimizationProfileAsync. A new context has profile 0. Ranks may
 * choose different profiles.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if there is no such profile; DCL_STATUS_NOT_READY if an
 * enqueued run of the context is not done, or its work was not waited for. [local, exclusive] */
dcl_status_t dcl_execution_context_set_optimization_profile(dcl_execution_context_t *context,
                                                            int32_t profile_index);

/* Returns the index of the optimization profile. [local, shared] */
dcl_status_t dcl_execution_context_get_optimization_profile(dcl_execution_context_t *context,
                                                            int32_t *profile_index);

/* Sets the shapes of `nb_inputs` inputs together: TensorRT's setInputShape. `names` and `dims` are
 * arrays of `nb_inputs` elements. Enqueued runs keep their shapes.
 *
 * Errors: DCL_STATUS_INVALID_SHAPE if a shape is outside the profile, or a layer cannot take it.
 * After an error the shapes are as before. [local, exclusive] */
dcl_status_t dcl_execution_context_set_input_shapes(dcl_execution_context_t *context,
                                                    const char *const *names,
                                                    const dcl_dims_t *dims, int32_t nb_inputs);

/* Returns the shape of an input or output: TensorRT's getTensorShape.
 *
 * Errors: DCL_STATUS_NOT_READY if an input's shape is not set. [local, shared] */
dcl_status_t dcl_execution_context_get_tensor_shape(dcl_execution_context_t *context,
                                                    const char *name, dcl_dims_t *dims);

/* Binds an input or output to `byte_len` bytes of the caller's memory: TensorRT's setTensorAddress,
 * with a length. NULL unbinds it. The memory is on the host, or on the communicator's GPU. It may
 * be longer than the tensor, which begins at its start. An input that this rank does not read, and
 * an output that it does not write, need not be bound.
 *
 * A run uses the memory that was bound when the run was enqueued. Until the run ends, the memory
 * must stay valid, the caller must not write an input, and the caller must neither read nor write
 * an output. [local, exclusive] */
dcl_status_t dcl_execution_context_set_tensor_address(dcl_execution_context_t *context,
                                                      const char *name, void *address,
                                                      size_t byte_len);

/* Returns the address to which an input or output is bound, or NULL. [local, shared] */
dcl_status_t dcl_execution_context_get_tensor_address(dcl_execution_context_t *context,
                                                      const char *name, void **address);

/* Refuses the next run of this rank, before it begins. Call it if the program cannot make the run.
 * On the other ranks the run is an error DCL_STATUS_RUN_REFUSED with the reason, from the first
 * collective of the run in which this rank takes part, and all ranks go on to the next run. In a
 * request, this rank leaves the request. The communicator ends in three cases: on GPUs; if the
 * network has plugins; if a rank that gets the error has done another collective of the run. The
 * last two are not so in a request. [collective, exclusive] */
dcl_status_t dcl_execution_context_refuse_run(dcl_execution_context_t *context, const char *reason);

/* Enqueues a run of the engine on the bound memory: TensorRT's enqueueV3. All ranks enqueue their
 * runs in the same order.
 * - `stream`: NULL means the calling thread. The run is then done when the call returns, and the
 *   call waits for other ranks, at most until the timeout. On any other stream the call returns at
 *   once.
 * - `work`: if it is not NULL, *work receives a handle of the run. Free it with dcl_work_free. If
 *   it is NULL, dcl_stream_synchronize returns the run's error.
 *
 * Errors before any data moves: DCL_STATUS_NOT_READY if a shape, an address or the communicator is
 * missing; DCL_STATUS_INVALID_BUFFER if memory is too short, misaligned or overlaps;
 * DCL_STATUS_INVALID_ARGUMENT or DCL_STATUS_BUSY if a plugin enqueues the context that runs it. On
 * a communicator, those of shapes, addresses and memory refuse the run, as
 * dcl_execution_context_refuse_run does. Any later error but DCL_STATUS_RUN_REFUSED ends the
 * communicator, on the host except in a request. [collective, exclusive] */
dcl_status_t dcl_execution_context_enqueue(dcl_execution_context_t *context, dcl_stream_t *stream,
                                           dcl_work_t **work);

/* -------------------------------------------------------------------------------------------------
 * 2. The layer by itself
 *
 * For an engine that has its own graph. The calls of section 1b get and set the layer's attributes.
 * The methods of an IPluginV3 call these functions:
 * - supportsFormatCombination: dcl_dist_collective_check_type
 * - getOutputShapes: dcl_dist_collective_get_output_dims
 * - getAliasedInput: dcl_dist_collective_get_in_place
 * - attachToContext: dcl_dist_collective_bind
 * - enqueue: dcl_bound_layer_enqueue
 * - clone: dcl_dist_collective_clone
 * - getFieldsToSerialize: dcl_dist_collective_serialize
 * The layer needs no workspace memory from the engine.
 * ---------------------------------------------------------------------------------------------- */

/* Creates a DistCollective layer that belongs to no network. The arguments and errors are those of
 * dcl_network_add_dist_collective. Free it with dcl_layer_free. [local, shared] */
dcl_status_t dcl_dist_collective_new(dcl_collective_operation_t operation,
                                     dcl_reduce_operation_t reduce_op, int64_t root,
                                     const int64_t *groups, int64_t group_size,
                                     dcl_layer_t **layer);

/* Copies a DistCollective layer, which may belong to a network. The copy belongs to no network.
 * Free it with dcl_layer_free. [local, shared] */
dcl_status_t dcl_dist_collective_clone(dcl_layer_t *layer, dcl_layer_t **clone);

/* Copies out the layer's attributes as bytes. [local, shared] */
dcl_status_t dcl_dist_collective_serialize(dcl_layer_t *layer, void *buffer, size_t capacity,
                                           size_t *length);

/* Creates a layer from the bytes of dcl_dist_collective_serialize. They may come from an untrusted
 * source. Free it with dcl_layer_free.
 *
 * Errors: DCL_STATUS_INVALID_PLAN if the bytes are not a layer of this version. [local, shared] */
dcl_status_t dcl_dist_collective_deserialize(const void *bytes, size_t byte_len,
                                             dcl_layer_t **layer);

/* Checks whether the layer accepts inputs of a type.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT for the average of bool. [local, shared] */
dcl_status_t dcl_dist_collective_check_type(dcl_layer_t *layer, dcl_data_type_t data_type);

/* Computes the dimensions of the output from those of the input. A dimension of -1 stays -1.
 * `output` may be equal to `input`.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT or DCL_STATUS_INVALID_NETWORK if the attributes do not fit
 * together; DCL_STATUS_INVALID_SHAPE if the operation cannot take the shape. [local, shared] */
dcl_status_t dcl_dist_collective_get_output_dims(dcl_layer_t *layer, const dcl_dims_t *input,
                                                 dcl_dims_t *output);

/* Binds a copy of the layer to a communicator, for inputs of one type. The ranks check that the
 * layer fits the communicator, compare their layers, and split off the layer's groups. No rank
 * waits for another if the layer is the identity: its nb_rank was set to 1, and it has no groups.
 * The caller may then change or free the layer. Free the bound layer with dcl_bound_layer_free.
 *
 * Errors: as dcl_execution_context_set_communicator; DCL_STATUS_INVALID_ARGUMENT or
 * DCL_STATUS_INVALID_NETWORK if the attributes do not fit together. [collective, shared] */
dcl_status_t dcl_dist_collective_bind(dcl_layer_t *layer, dcl_communicator_t *communicator,
                                      dcl_data_type_t data_type, dcl_bound_layer_t **bound);

/* Frees a bound layer. Enqueued runs continue. [local, shared] */
dcl_status_t dcl_bound_layer_free(dcl_bound_layer_t *bound);

/* Computes the dimensions of the output from those of the input, of which none is -1. `output` may
 * be equal to `input`.
 *
 * Errors: DCL_STATUS_INVALID_SHAPE if the operation cannot take the shape. [local, shared] */
dcl_status_t dcl_bound_layer_get_output_dims(dcl_bound_layer_t *bound, const dcl_dims_t *input,
                                             dcl_dims_t *output);

/* Returns where this rank's input and output may share memory, for an input of the dimensions
 * `input`. *element_offset is a number of elements, or 0 if the rule has none. `element_offset` may
 * be NULL.
 *
 * Errors: DCL_STATUS_INVALID_SHAPE if the operation cannot take the shape. [local, shared] */
dcl_status_t dcl_bound_layer_get_in_place(dcl_bound_layer_t *bound, const dcl_dims_t *input,
                                          dcl_in_place_t *in_place, size_t *element_offset);

/* Returns whether this rank reads the input, and whether it writes the output: 1 or 0. A buffer
 * that the rank does not use may be NULL in dcl_bound_layer_enqueue. Each output pointer may be
 * NULL. [local, shared] */
dcl_status_t dcl_bound_layer_get_uses(dcl_bound_layer_t *bound, int32_t *reads_input,
                                      int32_t *writes_output);

/* Returns what dcl_bound_layer_get_in_place returns, before there is a communicator: for rank
 * `group_rank` of the layer's group, and dimensions of which none is -1. TensorRT calls
 * getAliasedInput for this when it plans memory.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT or DCL_STATUS_INVALID_NETWORK if the attributes do not fit
 * together; DCL_STATUS_INVALID_SHAPE if the operation cannot take the shape. [local, shared] */
dcl_status_t dcl_dist_collective_get_in_place(dcl_layer_t *layer, int32_t group_rank,
                                              const dcl_dims_t *input, dcl_in_place_t *in_place,
                                              size_t *element_offset);

/* Enqueues a run of the layer on an input of the dimensions `dims`. `input` and `output` are
 * addresses in the communicator's memory (the host's, or that of its GPU), of elements of the bound
 * type. A buffer that this rank does not use may be NULL. dcl_bound_layer_get_in_place returns
 * where the two may share memory. `stream` and `work` are as in dcl_execution_context_enqueue.
 * Until the run ends, the memory must stay valid, the caller must not write the input, and the
 * caller must neither read nor write the output.
 *
 * Errors before any data moves: DCL_STATUS_INVALID_SHAPE if the operation cannot take the
 * dimensions; DCL_STATUS_INVALID_BUFFER if an address is NULL or misaligned, or the buffers overlap
 * against the in-place rule. They refuse the run, as dcl_bound_layer_refuse_run does.
 * [collective, shared] */
dcl_status_t dcl_bound_layer_enqueue(dcl_bound_layer_t *bound, const void *input, void *output,
                                     const dcl_dims_t *dims, dcl_stream_t *stream,
                                     dcl_work_t **work);

/* dcl_execution_context_refuse_run for the layer's next run. [collective, shared] */
dcl_status_t dcl_bound_layer_refuse_run(dcl_bound_layer_t *bound, const char *reason);

/* -------------------------------------------------------------------------------------------------
 * 3a. The environment: the ranks that a launcher started
 * ---------------------------------------------------------------------------------------------- */

/* The settings of an environment. The library reads settings that keep their initial value from the
 * launcher's environment variables: those of torchrun, TensorRT's sample (TRT_MY_RANK,
 * TRT_WORLD_SIZE and TRT_NCCL_ID_FILE), Open MPI, MPICH or SLURM. */
typedef struct dcl_environment_config {
    size_t struct_size;
    /* For this field and the next five, -1 means that the caller does not set it. */
    int32_t rank;
    int32_t world_size;
    int32_t local_rank;
    /* The launcher's rendezvous port at `host`: MASTER_PORT. The launcher itself may listen on
     * it. */
    int32_t port;
    /* The port at `host` of this library's rendezvous over TCP. If it is not set, it is the one
     * after `port`. */
    int32_t rendezvous_port;
    /* The number of this rank's GPU among those that the process sees. If it is not set, it is the
     * local rank. */
    int32_t device;
    /* The rendezvous address: MASTER_ADDR. NULL means that the caller does not set it. */
    const char *host;
    /* A secret that only this job's ranks know. It replaces DCL_SECRET. NULL means that the caller
     * does not set it; an empty text is an error. */
    const char *secret;
    /* "nccl", "host", "ucx", "mpi" or "auto". "auto", or NULL, means NCCL if every rank has a GPU
     * of its own; an error if a rank sees GPUs, and NCCL is missing or CUDA does not work; else the
     * host, between machines with UCX, or with MPI if the ranks meet over it. */
    const char *backend;
    /* The seed. All ranks use rank 0's. */
    uint64_t seed;
    /* The timeout of the rendezvous, and of each later call. */
    int64_t timeout_ms;
    /* Not 0: rank 0 prints a line when the environment is ready. */
    int32_t verbose;
    /* 0. */
    int32_t reserved;
} dcl_environment_config_t;
#define DCL_ENVIRONMENT_CONFIG_INIT \
    {sizeof(dcl_environment_config_t), -1, -1, -1, -1, -1, -1, NULL, NULL, NULL, 1024, \
     DCL_TIMEOUT_DEFAULT, 0, 0}

/* Writes what DCL_ENVIRONMENT_CONFIG_INIT has to a structure of `struct_size` bytes.
 * [local, shared] */
dcl_status_t dcl_environment_config_init(dcl_environment_config_t *config, size_t struct_size);

/* Copies out the name of the launcher whose environment variables are set, such as "torchrun". The
 * text is empty if there is none. [local, shared] */
dcl_status_t dcl_environment_detect_launcher(char *buffer, size_t capacity, size_t *length);

/* Connects this process, which is one rank, with the other ranks. `config` may be NULL. A process
 * has one environment at a time. End it with dcl_environment_finalize or dcl_environment_free.
 *
 * Errors:
 * - DCL_STATUS_NOT_READY: this process has an environment.
 * - DCL_STATUS_INVALID_ARGUMENT: settings are missing, wrong or contradict each other. The message
 *   lists all of them.
 * - DCL_STATUS_DISAGREEMENT: ranks have different world sizes, secrets or backends, or two
 *   processes have the same rank.
 * - DCL_STATUS_UNSUPPORTED: a rank cannot use the backend.
 * - DCL_STATUS_DEADLINE_EXCEEDED: a rank did not connect before the timeout.
 * - DCL_STATUS_PEER_LOST, DCL_STATUS_ABORTED: a rank failed or ended.
 * [collective, shared] */
dcl_status_t dcl_environment_initialize(const dcl_environment_config_t *config,
                                        dcl_environment_t **environment);

/* Waits for every rank to finalize, and frees the handle, also if the call fails. If the rank's
 * last call differed from the other ranks' calls, this call returns the error. Communicators of the
 * environment stay valid until they are freed. [collective, shared] */
dcl_status_t dcl_environment_finalize(dcl_environment_t *environment);

/* Frees the handle without waiting. The rank has left when the communicators of the environment are
 * freed too. [local, shared] */
dcl_status_t dcl_environment_free(dcl_environment_t *environment);

/* What an environment has found. The texts are valid until it is finalized or freed. */
typedef struct dcl_environment_info {
    size_t struct_size;
    /* This process's rank. */
    int32_t rank;
    /* The number of ranks. */
    int32_t world_size;
    /* This process's number among the ranks on its machine. */
    int32_t local_rank;
    /* The number of ranks on this machine. */
    int32_t local_world_size;
    /* The seed, which all ranks share. */
    uint64_t seed;
    /* The name of the launcher that started the ranks. */
    const char *launcher;
    /* Where these values come from, such as "RANK" for the variable of that name; NULL if that is
     * not known. */
    const char *rank_source;
    const char *world_size_source;
    const char *local_rank_source;
    const char *local_world_size_source;
    const char *rendezvous_source;
} dcl_environment_info_t;
#define DCL_ENVIRONMENT_INFO_INIT \
    {sizeof(dcl_environment_info_t), 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL}

/* Fills in `info`. [local, shared] */
dcl_status_t dcl_environment_get_info(dcl_environment_t *environment, dcl_environment_info_t *info);

/* Returns a new handle of the communicator of all ranks. Free it with dcl_communicator_free.
 * [local, shared] */
dcl_status_t dcl_environment_get_communicator(dcl_environment_t *environment,
                                              dcl_communicator_t **communicator);

/* Returns 1 if this process has an environment, and 0 otherwise. [local, shared] */
dcl_status_t dcl_environment_is_initialized(int32_t *is_initialized);

/* Creates a group with a name, of `nb_ranks` ranks in the order of `ranks`. Every rank passes the
 * same name and list. A rank that is not in the list receives NULL. Free the communicator with
 * dcl_communicator_free; the environment keeps the group until it ends.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if there is a group of that name, or a rank occurs twice or
 * is not in the environment; DCL_STATUS_DISAGREEMENT if names or lists differ. The communicator
 * still works. [collective, shared] */
dcl_status_t dcl_environment_new_group(dcl_environment_t *environment, const char *name,
                                       const int64_t *ranks, int64_t nb_ranks,
                                       dcl_communicator_t **group);

/* Returns a new handle of a group's communicator by its name. "default" is the group of all ranks.
 * Free the handle with dcl_communicator_free.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if there is no group of that name; DCL_STATUS_NOT_A_MEMBER if
 * this rank is not in it. [local, shared] */
dcl_status_t dcl_environment_get_group(dcl_environment_t *environment, const char *name,
                                       dcl_communicator_t **group);

/* -------------------------------------------------------------------------------------------------
 * 3b. Communicators
 *
 * A communicator handle is one rank's end of a communicator. When a rank has freed its last handle
 * and no other object needs it, the rank has left. Calls of other ranks that wait for it return
 * DCL_STATUS_PEER_LOST.
 *
 * Order. The collective calls of one rank on one communicator take effect in the order in which the
 * rank makes them, whatever streams and handles it uses. A call on the NULL stream therefore runs
 * after all calls that the rank enqueued before. If several threads of a rank make calls, the
 * caller ensures that their order is the same on every rank. A run of a context, or of a bound
 * layer, takes one place in the order of its communicator and of all groups split from it.
 *
 * Failures. A collective call can also fail because of another rank, with DCL_STATUS_DISAGREEMENT,
 * DCL_STATUS_DEADLINE_EXCEEDED, DCL_STATUS_PEER_LOST or DCL_STATUS_ABORTED, and by the interrupt
 * callback, with DCL_STATUS_INTERRUPTED. After an error its outputs are undefined, and no other
 * rank accesses this rank's memory any more. The communicator has ended, with all that were split
 * from the same origin: each further call returns an error at once. Only three kinds of errors
 * leave it working:
 * - a wrong argument that a rank finds before it sends or receives anything. The other ranks do not
 *   learn of it; they wait for the right call until their timeout.
 * - a wrong argument of a run, of which the others learn as dcl_execution_context_refuse_run says.
 * - errors of which a description says that the communicator still works. Every rank returns them.
 * On the host, a rank that takes no elements from a rank whose call is another, such as the root of
 * a broadcast, may return success. Its next call or wait returns the error, or
 * dcl_communicator_finalize does. On GPUs, ranks of one machine compare their calls beside NCCL.
 * Ranks of several machines that met over TCP or a file do so some 100 ms later. Other differences
 * end at the timeout.
 *
 * Forks. A child process that was forked from a rank is not a rank. It may call exec or exit, free
 * its copies of handles, and create communicators of its own. Any other call on a copy of a
 * communicator, a worker stream or work, or on an object on a GPU, returns DCL_STATUS_UNSUPPORTED.
 * A buffer of dcl_communicator_allocate becomes the child's private memory when the child reads it,
 * writes it or asks for its address; an address from before the fork still leads to the rank's
 * memory. If another thread was inside this library during the fork, the child may only call exec
 * or exit. The library detects fork(), but not _Fork() or clone().
 * ---------------------------------------------------------------------------------------------- */

/* Creates a communicator whose ranks are threads of this process. communicators[r] is rank r; use
 * each from a thread of its own.
 * - `backend` is "host", "nccl" (rank r uses GPU r) or "auto". "auto", or NULL, means NCCL if there
 *   is a GPU for each rank; an error if there are GPUs, and NCCL is missing or CUDA does not work;
 *   else the host.
 * - `communicators` is an array of `world_size` handles. Free each with dcl_communicator_free.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if `world_size` or `backend` is wrong; DCL_STATUS_UNSUPPORTED
 * if the backend cannot be used. [local, shared] */
dcl_status_t dcl_communicator_new_in_process(const char *backend, int32_t world_size,
                                             int64_t timeout_ms,
                                             dcl_communicator_t **communicators);

/* How the processes of a job on one machine find each other without a launcher, for the host
 * backend. */
typedef struct dcl_bootstrap_config {
    size_t struct_size;
    /* The job's name. All processes of the job use the same name, and no other job of this user
     * uses it at the same time. */
    const char *job;
    /* The number of ranks in all processes together. */
    int32_t world_size;
    /* The first rank of this process. */
    int32_t rank;
    /* The number of ranks in this process. */
    int32_t local_ranks;
    /* 0. */
    int32_t reserved;
    /* The timeout of the bootstrap, and of each later call. */
    int64_t timeout_ms;
} dcl_bootstrap_config_t;
#define DCL_BOOTSTRAP_CONFIG_INIT \
    {sizeof(dcl_bootstrap_config_t), NULL, 1, 0, 1, 0, DCL_TIMEOUT_DEFAULT}

/* Writes what DCL_BOOTSTRAP_CONFIG_INIT has to a structure of `struct_size` bytes.
 * [local, shared] */
dcl_status_t dcl_bootstrap_config_init(dcl_bootstrap_config_t *config, size_t struct_size);

/* Connects this process with the job's other processes and creates a communicator of all their
 * ranks. `communicators` is an array of `config->local_ranks` handles, in rank order; use each from
 * a thread of its own and free it with dcl_communicator_free. The library leaves nothing in the
 * file system, even if a process crashes.
 *
 * Errors:
 * - DCL_STATUS_INVALID_ARGUMENT: the job has no name, or the numbers do not fit.
 * - DCL_STATUS_DISAGREEMENT: processes have different world sizes, or two have the same rank.
 * - DCL_STATUS_SYSTEM: another job uses the name.
 * - DCL_STATUS_DEADLINE_EXCEEDED: a process did not connect before the timeout.
 * [collective, shared] */
dcl_status_t dcl_communicator_bootstrap(const dcl_bootstrap_config_t *config,
                                        dcl_communicator_t **communicators);

/* The number of bytes in an ncclUniqueId. */
#define DCL_NCCL_ID_BYTES 128

/* Writes a new id of DCL_NCCL_ID_BYTES bytes to `id`, for dcl_communicator_new_nccl. One rank makes
 * the call, and the caller sends the id to the other ranks.
 *
 * Errors: DCL_STATUS_UNSUPPORTED if NCCL is not installed. [local, shared] */
dcl_status_t dcl_nccl_id_new(uint8_t *id);

/* Creates a communicator on GPUs with the other ranks that have the same `id`. The ranks are
 * processes on any machines, or threads. `device` is the number of this rank's GPU among those that
 * the process sees. Free the communicator with dcl_communicator_free.
 *
 * Errors: DCL_STATUS_UNSUPPORTED if there is no such GPU or no NCCL. [collective, shared] */
dcl_status_t dcl_communicator_new_nccl(const uint8_t *id, int32_t rank, int32_t world_size,
                                       int32_t device, int64_t timeout_ms,
                                       dcl_communicator_t **communicator);

/* Creates a communicator from the caller's ncclComm_t, as TensorRT's setCommunicator takes it. It
 * belongs to the libnccl.so.2 of this process. The library borrows it: it neither aborts nor
 * destroys it. The caller must not use it during a call, and must not destroy it until this handle
 * and everything created from it are freed and their work is done. If it is a blocking one, calls
 * may wait beyond their timeout. Free the communicator with dcl_communicator_free.
 * [collective, shared] */
dcl_status_t dcl_communicator_from_nccl(void *nccl_comm, int64_t timeout_ms,
                                        dcl_communicator_t **communicator);

/* Creates a communicator of the ranks of the caller's MPI_Comm, on any number of machines without
 * GPUs: on each machine the host backend, and MPI between them. `mpi_comm` is
 * `(uint64_t)MPI_COMM_WORLD`, say, of the MPI that this process has loaded. The library duplicates
 * it, and does not use it afterwards. MPI has been initialized by MPI_Init_thread with
 * MPI_THREAD_MULTIPLE, since a thread of the library calls it too. After MPI_Finalize calls return
 * DCL_STATUS_NOT_READY. Free the communicator with dcl_communicator_free.
 *
 * Errors: DCL_STATUS_UNSUPPORTED if MPI allows fewer threads; DCL_STATUS_NOT_READY if it is not
 * initialized, or finalized; DCL_STATUS_INVALID_ARGUMENT for MPI_COMM_NULL, and for an
 * intercommunicator. [collective, shared] */
dcl_status_t dcl_communicator_from_mpi(uint64_t mpi_comm, int64_t timeout_ms,
                                       dcl_communicator_t **communicator);

/* Frees a handle without waiting. [local, shared] */
dcl_status_t dcl_communicator_free(dcl_communicator_t *communicator);

/* Waits for every rank to finalize, and frees the handle, also if the call fails. If the rank's
 * last call differed from the other ranks' calls, this call returns the error. Other handles of the
 * same rank stay valid. [collective, shared] */
dcl_status_t dcl_communicator_finalize(dcl_communicator_t *communicator);

/* Returns this rank's number, from 0. [local, shared] */
dcl_status_t dcl_communicator_get_rank(dcl_communicator_t *communicator, int32_t *rank);

/* Returns the number of ranks. [local, shared] */
dcl_status_t dcl_communicator_get_world_size(dcl_communicator_t *communicator, int32_t *world_size);

/* Copies out the backend's name: "host", "nccl", "ucx" or "mpi". [local, shared] */
dcl_status_t dcl_communicator_get_backend(dcl_communicator_t *communicator, char *buffer,
                                          size_t capacity, size_t *length);

/* Returns the number of the GPU that has the communicator's memory, or -1 for the host.
 * [local, shared] */
dcl_status_t dcl_communicator_get_device(dcl_communicator_t *communicator, int32_t *device);

/* What may differ between two handles of the same rank. */
typedef struct dcl_communicator_options {
    size_t struct_size;
    /* The time in milliseconds that a collective call waits for other ranks. */
    int64_t timeout_ms;
    /* How far the bits of reductions are determined. Contexts and groups that are created with the
     * handle have it too. All ranks of a call use the same. */
    dcl_determinism_t determinism;
    /* The type in which the float32 elements of calls on buffers travel, or DCL_WIRE_TYPE_NONE.
     * With a type, other operations, list forms and other element types are an error. Layers and
     * contexts have their own; groups that are created with the handle have none. All ranks of a
     * call use the same. */
    dcl_wire_type_t wire_type;
} dcl_communicator_options_t;
#define DCL_COMMUNICATOR_OPTIONS_INIT \
    {sizeof(dcl_communicator_options_t), DCL_TIMEOUT_DEFAULT, DCL_DETERMINISM_BACKEND, \
     DCL_WIRE_TYPE_NONE}

/* Fills in the options of this handle. [local, shared] */
dcl_status_t dcl_communicator_get_options(dcl_communicator_t *communicator,
                                          dcl_communicator_options_t *options);

/* Returns another handle of the same rank with other options. To change one of them, get all first.
 * Free the handle with dcl_communicator_free. [local, shared] */
dcl_status_t dcl_communicator_with_options(dcl_communicator_t *communicator,
                                           const dcl_communicator_options_t *options,
                                           dcl_communicator_t **other);

/* Copies out the value of the session config entry "distcollective.communicator" of ONNX Runtime. A
 * session whose options have this entry and the custom operators of libdistcollective.so runs its
 * DistCollective nodes on this communicator, with this handle's timeout. Set the entry before the
 * operators are registered, and create the session before the handle is freed. Every call with one
 * handle gives the same text. [local, shared] */
dcl_status_t dcl_communicator_session_value(dcl_communicator_t *communicator, char *buffer,
                                            size_t capacity, size_t *length);

/* Checks whether the communicator still works.
 *
 * Errors: the error that ended the communicator. [local, shared] */
dcl_status_t dcl_communicator_check(dcl_communicator_t *communicator);

/* Ends the communicator, and all communicators of the same origin, on every rank. Waiting calls
 * return at once. Calls of other ranks return DCL_STATUS_ABORTED, with this rank and `reason` in
 * the message. [local, shared] */
dcl_status_t dcl_communicator_abort(dcl_communicator_t *communicator, const char *reason);

/* Begins a request: what this rank does for one request of a server, until it calls
 * dcl_communicator_end_request. Every rank begins each request, with the same `id`, from any
 * thread. Requests run one after the other, in the order in which rank 0 begins them: a call with
 * another id waits. So a rank has a thread for each request that it may take before the one that
 * rank 0 begins. A thread begins its next request when the one that it began has ended. In a
 * request the caller waits for all work that it enqueues.
 *
 * If a rank ends its request with a failure, it leaves the request. The calls of the other ranks in
 * it return DCL_STATUS_RUN_REFUSED with the reason, and all ranks go on to the next request. On the
 * host, each collective on this communicator waits for all ranks meanwhile, also one of another
 * thread. Collectives in a request are on this communicator, or on groups that were split from it.
 *
 * A failed request ends the communicator in three cases: on GPUs; if a rank has begun a message in
 * it; if a rank has a group that was split from this communicator, as layers with groups make them.
 *
 * Errors: DCL_STATUS_DEADLINE_EXCEEDED if rank 0 does not begin the request, or a rank does not
 * begin the one that rank 0 has begun; DCL_STATUS_INVALID_ARGUMENT if this thread has begun a
 * request that is open. [collective, shared] */
dcl_status_t dcl_communicator_begin_request(dcl_communicator_t *communicator, uint64_t id);

/* Ends the request that is open on this rank. If `failure` is NULL, the call waits until all ranks
 * have ended the request. Otherwise it is the reason why this rank failed, and the others get it.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if no request is open; DCL_STATUS_RUN_REFUSED if `failure` is
 * NULL and another rank failed. [collective, shared] */
dcl_status_t dcl_communicator_end_request(dcl_communicator_t *communicator, const char *failure);

/* Waits until every rank has called the barrier. [collective, shared] */
dcl_status_t dcl_communicator_barrier(dcl_communicator_t *communicator);

/* Waits until every rank has called the function, at most for `timeout_ms`. If ranks are missing
 * then, every rank gets an error whose message names all of them: those that waited
 * DCL_STATUS_DEADLINE_EXCEEDED or DCL_STATUS_ABORTED, the missing ones in their next call.
 *
 * Errors: DCL_STATUS_UNSUPPORTED on GPUs, unless the ranks met through dcl_environment_initialize,
 * on several machines over TCP or a file, or through dcl_communicator_new_in_process.
 * [collective, shared] */
dcl_status_t dcl_communicator_monitored_barrier(dcl_communicator_t *communicator,
                                                int64_t timeout_ms);

/* Enqueues a barrier. Its work is done when every rank has come to it. `stream` and `work` are as
 * in dcl_execution_context_enqueue. [collective, shared] */
dcl_status_t dcl_communicator_enqueue_barrier(dcl_communicator_t *communicator,
                                              dcl_stream_t *stream, dcl_work_t **work);

/* Returns a new handle of the communicator's own stream, a worker stream that is created at the
 * first call. All handles of this rank share it. Free the handle with dcl_stream_free.
 * [local, shared] */
dcl_status_t dcl_communicator_get_stream(dcl_communicator_t *communicator, dcl_stream_t **stream);

/* Copies out the global ranks of this communicator's ranks, in its order: their ranks in the
 * communicator from which all others were split. Error messages use these numbers. `capacity` and
 * *length are numbers of ranks. If `ranks` is NULL, the function writes only *length.
 *
 * Errors: DCL_STATUS_BUFFER_TOO_SMALL if the capacity is too small. [local, shared] */
dcl_status_t dcl_communicator_get_global_ranks(dcl_communicator_t *communicator, int64_t *ranks,
                                               size_t capacity, size_t *length);

/* Returns the global rank of a rank of this communicator.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if there is no such rank. [local, shared] */
dcl_status_t dcl_communicator_get_global_rank(dcl_communicator_t *communicator, int32_t rank,
                                              int32_t *global_rank);

/* Returns the number that a global rank has in this communicator.
 *
 * Errors: DCL_STATUS_NOT_A_MEMBER if the global rank is not in it. [local, shared] */
dcl_status_t dcl_communicator_get_group_rank(dcl_communicator_t *communicator, int32_t global_rank,
                                             int32_t *rank);

/* Creates one communicator for each `color`, of the ranks that pass that color, as ncclCommSplit
 * does. Its ranks are in the order of `key`, and of the old rank if keys are equal. A color is 0 or
 * more. A rank that passes DCL_NO_COLOR takes part in the call and receives NULL. Free the
 * communicator with dcl_communicator_free. [collective, shared] */
dcl_status_t dcl_communicator_split(dcl_communicator_t *communicator, int32_t color, int32_t key,
                                    dcl_communicator_t **group);

/* Creates a communicator of `nb_ranks` ranks of this one. Their order in `ranks` is the order of
 * the new ranks. Every rank of this communicator passes the same list. A rank that is not in the
 * list receives NULL. Free the communicator with dcl_communicator_free.
 *
 * Errors: DCL_STATUS_DISAGREEMENT if the lists differ; the communicator still works.
 * [collective, shared] */
dcl_status_t dcl_communicator_new_group(dcl_communicator_t *communicator, const int64_t *ranks,
                                        int64_t nb_ranks, dcl_communicator_t **group);

/* -------------------------------------------------------------------------------------------------
 * 3c. Buffers
 * ---------------------------------------------------------------------------------------------- */

/* Allocates `byte_len` bytes of symmetric memory, filled with zeros. All ranks can access it, so
 * collectives need not copy it to staging memory first. On GPUs it is memory of NCCL, or ordinary
 * memory if the ncclComm_t is the caller's; what a graph has captured is kept for later buffers
 * until the communicator ends. Every rank passes the same length. Communicators that are split from
 * this one can use it too. Free it with dcl_buffer_free.
 *
 * Errors: DCL_STATUS_DISAGREEMENT if the lengths differ; the communicator still works.
 * [collective, shared] */
dcl_status_t dcl_communicator_allocate(dcl_communicator_t *communicator, size_t byte_len,
                                       dcl_buffer_t **buffer);

/* Allocates `byte_len` bytes, filled with zeros, in the memory of the GPU `device`, or of the host
 * if `device` is -1. Free it with dcl_buffer_free. [local, shared] */
dcl_status_t dcl_buffer_new(int32_t device, size_t byte_len, dcl_buffer_t **buffer);

/* Frees a buffer and its memory. No work that uses its address may be running. [local, shared] */
dcl_status_t dcl_buffer_free(dcl_buffer_t *buffer);

/* Returns the address of the buffer's first byte. It is the same in each call, and aligned for
 * every type. After a failed collective, call the function again before you access symmetric
 * memory, and let no other thread access the memory meanwhile: the call detaches the memory, with
 * its bytes, from ranks that were stopped in the middle of a copy. [local, exclusive] */
dcl_status_t dcl_buffer_get_address(dcl_buffer_t *buffer, void **address);

/* Returns the length in bytes. [local, shared] */
dcl_status_t dcl_buffer_get_byte_len(dcl_buffer_t *buffer, size_t *byte_len);

/* Copies `byte_len` bytes, beginning at `byte_offset`, from a buffer on the host or on a GPU to
 * `bytes`. The call waits for the copy.
 *
 * Errors: DCL_STATUS_INVALID_BUFFER if the range is not in the buffer. [local, shared] */
dcl_status_t dcl_buffer_read(dcl_buffer_t *buffer, size_t byte_offset, void *bytes,
                             size_t byte_len);

/* Copies `byte_len` bytes from `bytes` to a buffer on the host or on a GPU, beginning at
 * `byte_offset`. The call waits for the copy.
 *
 * Errors: DCL_STATUS_INVALID_BUFFER if the range is not in the buffer. [local, exclusive] */
dcl_status_t dcl_buffer_write(dcl_buffer_t *buffer, size_t byte_offset, const void *bytes,
                              size_t byte_len);

/* -------------------------------------------------------------------------------------------------
 * 3d. Streams and work
 *
 * The NULL stream is the calling thread: a call on it is done when it returns.
 * ---------------------------------------------------------------------------------------------- */

/* Creates a stream that is a thread of its own. It runs the calls that are enqueued on it in order,
 * for communicators on the host. Free it with dcl_stream_free. [local, shared] */
dcl_status_t dcl_stream_new_worker(dcl_stream_t **stream);

/* Creates a CUDA stream on the GPU `device`. It does not synchronize with the default stream. Free
 * it with dcl_stream_free. [local, shared] */
dcl_status_t dcl_stream_new_cuda(int32_t device, dcl_stream_t **stream);

/* Creates a stream from the caller's cudaStream_t (or CUstream) of the primary context of the GPU
 * `device`. NULL means CUDA's legacy default stream. The library borrows it: the caller destroys it
 * after this handle is freed and everything that was enqueued through it is done. Wait with
 * dcl_work_wait or dcl_stream_synchronize: cudaStreamSynchronize detects neither a failed rank nor
 * a timeout. Free the stream with dcl_stream_free.
 *
 * During a stream capture, calls on the stream are recorded in the caller's graph, and their work
 * is done at once. A call that needs a kernel of the library has to run once before, uncaptured;
 * otherwise it returns DCL_STATUS_NOT_READY. The caller keeps the buffers, bound layers,
 * communicators and contexts until it has destroyed the graph. A context in a graph keeps the
 * communicator that it had. Launches of the graph must not overlap other work of the same context.
 *
 * Errors: DCL_STATUS_UNSUPPORTED for CUDA's per-thread default stream. [local, shared] */
dcl_status_t dcl_stream_from_cuda(void *cuda_stream, int32_t device, dcl_stream_t **stream);

/* Frees a stream. Enqueued calls still run. [local, shared] */
dcl_status_t dcl_stream_free(dcl_stream_t *stream);

/* Returns the CUstream of a CUDA stream, or NULL for a worker stream. [local, shared] */
dcl_status_t dcl_stream_get_cuda(dcl_stream_t *stream, void **cuda_stream);

/* Waits until everything that was enqueued before is done, and returns the first error of calls
 * that were enqueued without a work handle since the last dcl_stream_synchronize. Such a call keeps
 * its communicator alive until then, or until the stream is freed. On the NULL stream the call
 * returns at once. On a CUDA stream it waits at most 600 s for all other work, including work that
 * has a handle.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the caller runs on the worker stream itself, or a plugin
 * waits for work that begins after its own run; DCL_STATUS_INTERRUPTED if the interrupt callback
 * ends the wait. [waits, shared] */
dcl_status_t dcl_stream_synchronize(dcl_stream_t *stream);

/* Returns 1 if the work has ended, with or without an error, or its timeout is over, and 0
 * otherwise. After 1, dcl_work_wait does not wait for other ranks. [local, exclusive] */
dcl_status_t dcl_work_is_done(dcl_work_t *work, int32_t *is_done);

/* Waits until the work has ended and returns its status. Each later call returns the same status.
 *
 * Errors, besides the work's own: DCL_STATUS_INVALID_ARGUMENT if code on a worker stream waits for
 * work that is behind it on that stream, or a plugin waits for work that begins after its own run;
 * DCL_STATUS_INTERRUPTED if the interrupt callback ends the wait. The work then continues, and a
 * later call waits for it again. [waits, exclusive] */
dcl_status_t dcl_work_wait(dcl_work_t *work);

/* Waits as dcl_work_wait does, at most for `timeout_ms`. 0 does not wait. DCL_TIMEOUT_DEFAULT waits
 * as long as dcl_work_wait.
 *
 * Errors: those of dcl_work_wait; DCL_STATUS_PENDING if the work has not ended by then. A later
 * call can wait for it again. [waits, exclusive] */
dcl_status_t dcl_work_wait_for(dcl_work_t *work, int64_t timeout_ms);

/* Frees the handle. The work continues and still uses its buffers. Its error is lost.
 * [local, shared] */
dcl_status_t dcl_work_free(dcl_work_t *work);

/* -------------------------------------------------------------------------------------------------
 * 3e. Eager collectives
 *
 * The rules of all eight:
 * - `count` is a number of elements, as in NCCL. Each description states the element counts of the
 *   buffers. nranks is the size of the communicator, and rank is this rank's number.
 * - `input` and `output` are addresses in the communicator's memory, aligned to the element. A
 *   buffer that this rank does not use may be NULL. The two must not overlap, except in place as
 *   described.
 * - `root` is a rank of this communicator.
 * - `stream` and `work` are as in dcl_execution_context_enqueue. Until the call is done, the memory
 *   must stay valid, the caller must not write the input, and the caller must neither read nor
 *   write the output.
 * - Errors before any data moves: DCL_STATUS_INVALID_BUFFER if a buffer is NULL or misaligned, or
 *   the two overlap; DCL_STATUS_INVALID_ARGUMENT if the root, the reduce operation or the stream
 *   does not fit; DCL_STATUS_UNSUPPORTED for a CUDA stream on the host backend. Whether an address
 *   is in the communicator's memory is not checked. Section 3b lists the errors after that.
 * ---------------------------------------------------------------------------------------------- */

/* Reduces `count` elements of every rank and writes the result to every rank's output: output[i] is
 * the reduction of all ranks' input[i].
 *
 * `input` and `output` have `count` elements.
 *
 * In place if input == output. [collective, shared] */
dcl_status_t dcl_all_reduce(dcl_communicator_t *communicator, const void *input, void *output,
                            size_t count, dcl_data_type_t data_type,
                            dcl_reduce_operation_t reduce_op, dcl_stream_t *stream,
                            dcl_work_t **work);

/* Gathers `count` elements of every rank and writes all of them to every rank's output: rank r's
 * elements begin at output + r * count.
 *
 * `input` has `count` elements, `output` has nranks * `count`.
 *
 * In place if input == output + rank * count. [collective, shared] */
dcl_status_t dcl_all_gather(dcl_communicator_t *communicator, const void *input, void *output,
                            size_t count, dcl_data_type_t data_type, dcl_stream_t *stream,
                            dcl_work_t **work);

/* Copies the root's `count` elements to every rank's output. The other ranks' inputs are not read.
 *
 * `input` and `output` have `count` elements.
 *
 * In place if input == output. [collective, shared] */
dcl_status_t dcl_broadcast(dcl_communicator_t *communicator, const void *input, void *output,
                           size_t count, dcl_data_type_t data_type, int32_t root,
                           dcl_stream_t *stream, dcl_work_t **work);

/* Reduces `count` elements of every rank and writes the result to the root's output. The other
 * ranks' outputs are not written.
 *
 * `input` and `output` have `count` elements.
 *
 * In place if input == output. [collective, shared] */
dcl_status_t dcl_reduce(dcl_communicator_t *communicator, const void *input, void *output,
                        size_t count, dcl_data_type_t data_type, dcl_reduce_operation_t reduce_op,
                        int32_t root, dcl_stream_t *stream, dcl_work_t **work);

/* Reduces the inputs of all ranks and writes one block of the result to each rank: rank r's output
 * is the reduction of the elements that begin at input + r * count.
 *
 * `input` has nranks * `count` elements, `output` has `count`.
 *
 * In place if output == input + rank * count. [collective, shared] */
dcl_status_t dcl_reduce_scatter(dcl_communicator_t *communicator, const void *input, void *output,
                                size_t count, dcl_data_type_t data_type,
                                dcl_reduce_operation_t reduce_op, dcl_stream_t *stream,
                                dcl_work_t **work);

/* Sends one block to each rank and receives one block from each rank: the elements that begin at
 * output + s * count are those that begin at input + rank * count on rank s.
 *
 * `input` and `output` have nranks * `count` elements.
 *
 * Never in place. [collective, shared] */
dcl_status_t dcl_all_to_all(dcl_communicator_t *communicator, const void *input, void *output,
                            size_t count, dcl_data_type_t data_type, dcl_stream_t *stream,
                            dcl_work_t **work);

/* Gathers `count` elements of every rank and writes all of them to the root's output: rank r's
 * elements begin at output + r * count. The other ranks' outputs are not written.
 *
 * `input` has `count` elements, the root's `output` has nranks * `count`.
 *
 * In place at the root if input == output + root * count. [collective, shared] */
dcl_status_t dcl_gather(dcl_communicator_t *communicator, const void *input, void *output,
                        size_t count, dcl_data_type_t data_type, int32_t root, dcl_stream_t *stream,
                        dcl_work_t **work);

/* Writes one block of the root's input to each rank: rank r's output is the elements that begin at
 * input + r * count on the root. The other ranks' inputs are not read.
 *
 * The root's `input` has nranks * `count` elements, `output` has `count`.
 *
 * In place at the root if output == input + root * count. [collective, shared] */
dcl_status_t dcl_scatter(dcl_communicator_t *communicator, const void *input, void *output,
                         size_t count, dcl_data_type_t data_type, int32_t root,
                         dcl_stream_t *stream, dcl_work_t **work);

/* The list forms of all_gather, gather and scatter take one buffer for each rank, of `count`
 * elements each, in place of one buffer with all of them. They compute the same, and the rules
 * above hold. Every rank of the communicator calls the list form. A list is an array of nranks
 * addresses; on ranks that do not use it it is not read and may be NULL. The library reads the
 * array during the call only. The buffers of a list must not overlap the other buffer; outputs must
 * not overlap each other. On the host no call copies the list's elements into one buffer. On GPUs
 * they are sent and received one by one, in one group of NCCL's calls. */

/* Gathers `count` elements of every rank and writes those of rank r to outputs[r].
 * [collective, shared] */
dcl_status_t dcl_all_gather_list(dcl_communicator_t *communicator, const void *input,
                                 void *const *outputs, size_t count, dcl_data_type_t data_type,
                                 dcl_stream_t *stream, dcl_work_t **work);

/* Gathers `count` elements of every rank and writes those of rank r to outputs[r] of the root.
 * [collective, shared] */
dcl_status_t dcl_gather_list(dcl_communicator_t *communicator, const void *input,
                             void *const *outputs, size_t count, dcl_data_type_t data_type,
                             int32_t root, dcl_stream_t *stream, dcl_work_t **work);

/* Writes the `count` elements at inputs[r] of the root to the output of rank r.
 * [collective, shared] */
dcl_status_t dcl_scatter_list(dcl_communicator_t *communicator, const void *const *inputs,
                              void *output, size_t count, dcl_data_type_t data_type, int32_t root,
                              dcl_stream_t *stream, dcl_work_t **work);

/* The forms with counts, which MPI calls the v-forms, have a count of elements for each block in
 * place of one count. They compute the same, and the rules above hold. Every rank of the
 * communicator calls the form with counts. Counts are an array of nranks numbers, in rank order; on
 * ranks that do not use that side it is not read and may be NULL. A count may be 0. The blocks of a
 * buffer lie one after the other, in rank order. The library reads the array during the call only.
 *
 * If a rank gives another one a number of elements that this one does not take, every rank gets
 * DCL_STATUS_DISAGREEMENT, which names both, before an element moves. In place, the side with one
 * block is this rank's own block of the other side; all_to_all is never in place. There is no
 * transport type. On GPUs a call waits on its thread until the ranks have exchanged the counts, and
 * in a capture it ends the communicator. */

/* Sends input_counts[r] elements to rank r, and receives output_counts[r] from it.
 * [collective, shared] */
dcl_status_t dcl_all_to_all_v(dcl_communicator_t *communicator, const void *input,
                              const size_t *input_counts, void *output, const size_t *output_counts,
                              dcl_data_type_t data_type, dcl_stream_t *stream, dcl_work_t **work);

/* Writes the `input_count` elements of every rank to every rank's output. Rank r has
 * output_counts[r]. [collective, shared] */
dcl_status_t dcl_all_gather_v(dcl_communicator_t *communicator, const void *input,
                              size_t input_count, void *output, const size_t *output_counts,
                              dcl_data_type_t data_type, dcl_stream_t *stream, dcl_work_t **work);

/* Writes the `input_count` elements of every rank to the root's output. Rank r has
 * output_counts[r]; the other ranks give no output. [collective, shared] */
dcl_status_t dcl_gather_v(dcl_communicator_t *communicator, const void *input, size_t input_count,
                          void *output, const size_t *output_counts, dcl_data_type_t data_type,
                          int32_t root, dcl_stream_t *stream, dcl_work_t **work);

/* Writes the input_counts[r] elements of the root's block r to the output of rank r; the other
 * ranks give no input. [collective, shared] */
dcl_status_t dcl_scatter_v(dcl_communicator_t *communicator, const void *input,
                           const size_t *input_counts, void *output, size_t output_count,
                           dcl_data_type_t data_type, int32_t root, dcl_stream_t *stream,
                           dcl_work_t **work);

/* Reduces the inputs of all ranks and writes block r of the result, which has input_counts[r]
 * elements, to the output of rank r. [collective, shared] */
dcl_status_t dcl_reduce_scatter_v(dcl_communicator_t *communicator, const void *input,
                                  const size_t *input_counts, void *output, size_t output_count,
                                  dcl_data_type_t data_type, dcl_reduce_operation_t reduce_op,
                                  dcl_stream_t *stream, dcl_work_t **work);

/* -------------------------------------------------------------------------------------------------
 * 3f. Bytes of unknown length
 *
 * What torch.distributed's object collectives are used for, as bytes. The receivers do not know how
 * many bytes they get: the lengths travel first. Bytes may be empty, and are at most 1 GiB from one
 * rank to another; more is DCL_STATUS_INVALID_ARGUMENT, and a rank that announces more to others
 * ends the communicator with DCL_STATUS_SYSTEM. What arrives is in new buffers on the host; free
 * each with dcl_buffer_free. The functions read their inputs during the call only.
 * ---------------------------------------------------------------------------------------------- */

/* Gives every rank the root's bytes, the root too. The other ranks' `bytes` are not read.
 * [collective, shared] */
dcl_status_t dcl_broadcast_bytes(dcl_communicator_t *communicator, const void *bytes,
                                 size_t byte_len, int32_t root, dcl_buffer_t **received);

/* Gives every rank the bytes of every rank: received[r] receives those of rank r. `received` is an
 * array of nranks handles. [collective, shared] */
dcl_status_t dcl_all_gather_bytes(dcl_communicator_t *communicator, const void *bytes,
                                  size_t byte_len, dcl_buffer_t **received);

/* Gives the root the bytes of every rank: received[r] receives those of rank r. `received` is an
 * array of nranks handles on the root. On other ranks it is not written and may be NULL.
 * [collective, shared] */
dcl_status_t dcl_gather_bytes(dcl_communicator_t *communicator, const void *bytes, size_t byte_len,
                              int32_t root, dcl_buffer_t **received);

/* Gives rank r the byte_lens[r] bytes at list[r] of the root. `list` and `byte_lens` are arrays of
 * nranks values on the root. On other ranks they are not read and may be NULL.
 * [collective, shared] */
dcl_status_t dcl_scatter_bytes(dcl_communicator_t *communicator, const void *const *list,
                               const size_t *byte_lens, int32_t root, dcl_buffer_t **received);

/* -------------------------------------------------------------------------------------------------
 * 3g. Messages from one rank to another
 *
 * torch.distributed's send, recv, isend, irecv and batch_isend_irecv. The rules of all:
 * - `buffer` is an address in the communicator's memory, aligned to the element, of `count`
 *   elements. It may be NULL if `count` is 0.
 * - A message has a tag from 0 to DCL_MAX_TAG. A receive takes the first message with its tag from
 *   `src`, in the order in which that rank sent them. A `src` of DCL_ANY_SOURCE takes a message
 *   from any rank. A message may be shorter than the buffer.
 * - Messages are not collective, and on the host they are not ordered against collectives. Several
 *   threads of a rank may send and receive at once.
 * - On the host a sender has room for 16 messages to each rank, of up to 4040 bytes each (less
 *   among more than 64 ranks). A longer message, or one for which there is no room, waits until its
 *   receiver takes it. Ranks that send such messages to each other use dcl_batch_isend_irecv.
 * - NCCL has neither tags nor receives from any rank: any tag but 0, and DCL_ANY_SOURCE, are
 *   DCL_STATUS_UNSUPPORTED. Both ranks pass the same type and `count`. It orders messages and
 *   collectives by issue.
 * - Errors before any data moves: DCL_STATUS_INVALID_BUFFER if the address is NULL or misaligned;
 *   DCL_STATUS_INVALID_ARGUMENT if the rank or the tag is out of range. Whether the address is in
 *   the communicator's memory is not checked.
 * - Errors that end the communicator: those of section 3b. DCL_STATUS_DISAGREEMENT means that the
 *   message is longer than the receive's buffer or of another type. The sender may learn of it from
 *   its next call.
 *
 *     float sent[4] = {0}, got[4];
 *     dcl_message_t messages[2] = {DCL_MESSAGE_INIT, DCL_MESSAGE_INIT};
 *     messages[0].is_send = 1;
 *     messages[0].buffer = sent;
 *     messages[1].buffer = got;
 *     messages[0].count = messages[1].count = 4;
 *     messages[0].peer = (rank + 1) % nranks;
 *     messages[1].peer = (rank + nranks - 1) % nranks;
 *     status = dcl_batch_isend_irecv(communicator, messages, 2, &work);
 * ---------------------------------------------------------------------------------------------- */

/* A `src` that stands for any rank. */
#define DCL_ANY_SOURCE (-1)

/* The highest tag of a message. */
#define DCL_MAX_TAG 32767

/* Sends a message to rank `dst`. When the function returns, the caller may change the buffer; the
 * receiver may not have the message yet. [waits, shared] */
dcl_status_t dcl_send(dcl_communicator_t *communicator, const void *buffer, size_t count,
                      dcl_data_type_t data_type, int32_t dst, int32_t tag);

/* Receives a message into the beginning of a buffer. *source receives the rank that sent it, and
 * *received_count the number of its elements. Both pointers may be NULL. [waits, shared] */
dcl_status_t dcl_recv(dcl_communicator_t *communicator, void *buffer, size_t count,
                      dcl_data_type_t data_type, int32_t src, int32_t tag, int32_t *source,
                      size_t *received_count);

/* Begins to send a message. *work receives a handle; free it with dcl_work_free. Until the work has
 * ended, the memory must stay valid and the caller must not write it. [local, shared] */
dcl_status_t dcl_isend(dcl_communicator_t *communicator, const void *buffer, size_t count,
                       dcl_data_type_t data_type, int32_t dst, int32_t tag, dcl_work_t **work);

/* Begins to receive a message. *work receives a handle; free it with dcl_work_free. Until the work
 * has ended, the memory must stay valid and the caller must neither read nor write it.
 * dcl_work_get_received returns what has come. [local, shared] */
dcl_status_t dcl_irecv(dcl_communicator_t *communicator, void *buffer, size_t count,
                       dcl_data_type_t data_type, int32_t src, int32_t tag, dcl_work_t **work);

/* A message of dcl_batch_isend_irecv. */
typedef struct dcl_message {
    size_t struct_size;
    /* What is sent, or where the message is received. */
    void *buffer;
    /* The number of elements that are sent, or at most received. */
    size_t count;
    dcl_data_type_t data_type;
    /* Not 0: a send. 0: a receive. */
    int32_t is_send;
    /* The receiver of a send, or the sender; DCL_ANY_SOURCE stands for any sender. */
    int32_t peer;
    int32_t tag;
} dcl_message_t;
#define DCL_MESSAGE_INIT {sizeof(dcl_message_t), NULL, 0, DCL_DATA_TYPE_FLOAT, 0, 0, 0}

/* Writes what DCL_MESSAGE_INIT has to a structure of `struct_size` bytes. [local, shared] */
dcl_status_t dcl_message_init(dcl_message_t *message, size_t struct_size);

/* Begins `nb_messages` messages with one work for all of them. Ranks that exchange messages of any
 * length do not wait for each other if each passes its sends and receives to one such call. `work`
 * and the buffers are as in dcl_isend and dcl_irecv. If an argument of one message is wrong, no
 * message begins. [local, shared] */
dcl_status_t dcl_batch_isend_irecv(dcl_communicator_t *communicator, const dcl_message_t *messages,
                                   int32_t nb_messages, dcl_work_t **work);

/* Returns what message `index` of a work has received: the rank that sent it, and the number of its
 * elements. Messages are counted as they were passed, from 0. Each output pointer may be NULL.
 *
 * Errors: DCL_STATUS_NOT_READY if no dcl_work_wait or dcl_work_wait_for has returned success;
 * DCL_STATUS_INVALID_ARGUMENT if the work has no such message, or the message is a send.
 * [local, exclusive] */
dcl_status_t dcl_work_get_received(dcl_work_t *work, int32_t index, int32_t *source,
                                   size_t *received_count);

/* -------------------------------------------------------------------------------------------------
 * 3h. Dictionaries of tensors
 *
 * The weights of a model by name, and their broadcast after a training step. A tensor has a name, a
 * type, dimensions and elements row by row. The elements are in memory of the library, in memory of
 * the caller (borrowed), in a mapped file, or in memory that processes share. The last two are
 * read-only.
 *
 *     dcl_tensor_dict_t *weights;
 *     dcl_dict_tensor_t tensor = DCL_DICT_TENSOR_INIT;
 *     tensor.dims = (dcl_dims_t){2, {64, 32}};
 *     tensor.address = w;
 *     status = dcl_tensor_dict_new(&weights);
 *     status = dcl_tensor_dict_insert(weights, "w", &tensor);
 *     status = dcl_broadcast_tensor_dict(communicator, weights, NULL, NULL, NULL);
 *     status = dcl_tensor_dict_free(weights);
 * ---------------------------------------------------------------------------------------------- */

/* The `device` of host memory. */
#define DCL_DEVICE_HOST (-1)

/* A `device` that the caller does not set. */
#define DCL_DEVICE_UNSET (-2)

/* Creates a dictionary without tensors. Free it with dcl_tensor_dict_free. [local, shared] */
dcl_status_t dcl_tensor_dict_new(dcl_tensor_dict_t **dict);

/* Frees a dictionary and what its tensors own. [local, shared] */
dcl_status_t dcl_tensor_dict_free(dcl_tensor_dict_t *dict);

/* Reads a safetensors file into memory. Free the dictionary with dcl_tensor_dict_free.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the file is no safetensors file, or was cut or changed.
 * [local, shared] */
dcl_status_t dcl_tensor_dict_load(const char *path, dcl_tensor_dict_t **dict);

/* Maps a safetensors file: its elements are read when they are used, and take no memory of the
 * process. Until the dictionary is freed, no program may change the file or make it shorter. Free
 * the dictionary with dcl_tensor_dict_free.
 *
 * Errors: as dcl_tensor_dict_load. [local, shared] */
dcl_status_t dcl_tensor_dict_map(const char *path, dcl_tensor_dict_t **dict);

/* Writes a safetensors file. It takes the place of one of that name when it is complete.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the format does not have an element type.
 * [local, shared] */
dcl_status_t dcl_tensor_dict_save(dcl_tensor_dict_t *dict, const char *path);

/* The `data_type` of elements whose type this library does not have. */
#define DCL_OPAQUE_TYPE (-1)

/* A tensor of a dictionary. */
typedef struct dcl_dict_tensor {
    size_t struct_size;
    /* The type of the elements, or DCL_OPAQUE_TYPE. */
    dcl_data_type_t data_type;
    /* The number of the GPU that has the elements, or DCL_DEVICE_HOST. */
    int32_t device;
    dcl_dims_t dims;
    /* The type's name, such as "float32", and the bits of an element. dcl_tensor_dict_insert reads
     * them for DCL_OPAQUE_TYPE: a name such as safetensors' "F64" or "U16", and 1 to 1024 bits. */
    const char *type_name;
    int32_t bit_len;
    /* 1 if the kernel ends a process that writes the elements: those of dcl_tensor_dict_map and of
     * a broadcast with `shared`. Such a tensor cannot be inserted. */
    int32_t is_read_only;
    /* The address of the first element. With `strides`, of the one with the indices 0. */
    void *address;
    /* NULL, or a number of elements for each dimension, which may be negative or 0. A broadcast
     * replaces such a tensor of a receiver. */
    const int64_t *strides;
    /* The length of all elements in bytes. dcl_tensor_dict_insert reads it only if `address` is
     * NULL, and then it has to be 0: so what describes a strided tensor does not become zeros. */
    size_t byte_len;
} dcl_dict_tensor_t;
#define DCL_DICT_TENSOR_INIT \
    {sizeof(dcl_dict_tensor_t), DCL_DATA_TYPE_FLOAT, DCL_DEVICE_HOST, {0, {0}}, NULL, 0, 0, NULL, \
     NULL, 0}

/* Writes what DCL_DICT_TENSOR_INIT has to a structure of `struct_size` bytes. [local, shared] */
dcl_status_t dcl_dict_tensor_init(dcl_dict_tensor_t *tensor, size_t struct_size);

/* Adds a tensor at the end, or in the place of one of the same name, which is freed. If its address
 * is NULL, the library allocates zeros. Otherwise the tensor borrows the caller's memory, which
 * must stay valid until the tensor is removed or replaced, or the dictionary is freed, and until
 * the broadcasts that have begun before have ended. No call of the library may use the tensor while
 * the caller writes the memory.
 *
 * Errors: DCL_STATUS_INVALID_BUFFER if the address is misaligned; DCL_STATUS_INVALID_ARGUMENT if
 * `is_read_only` is not 0, the address is NULL and `byte_len` is not 0 or `strides` not NULL, or
 * elements of DCL_OPAQUE_TYPE have strides or do not fill whole bytes; DCL_STATUS_UNSUPPORTED if
 * there is no such GPU, or elements on a GPU have strides. [local, exclusive] */
dcl_status_t dcl_tensor_dict_insert(dcl_tensor_dict_t *dict, const char *name,
                                    const dcl_dict_tensor_t *tensor);

/* Removes a tensor, and frees what it owns. [local, exclusive] */
dcl_status_t dcl_tensor_dict_remove(dcl_tensor_dict_t *dict, const char *name);

/* Returns the number of tensors. [local, shared] */
dcl_status_t dcl_tensor_dict_get_nb_tensors(dcl_tensor_dict_t *dict, int32_t *nb_tensors);

/* Copies out the name of a tensor by its index, in the order of the dictionary. [local, shared] */
dcl_status_t dcl_tensor_dict_get_name(dcl_tensor_dict_t *dict, int32_t index, char *buffer,
                                      size_t capacity, size_t *length);

/* Fills in `tensor`. The address is valid until the tensor is removed or replaced, or the
 * dictionary is freed, and the type's name until the dictionary is freed. `strides` receives NULL.
 * If the tensor has strides, `address` receives NULL too; dcl_tensor_dict_read copies its elements.
 * [local, shared] */
dcl_status_t dcl_tensor_dict_get_tensor(dcl_tensor_dict_t *dict, const char *name,
                                        dcl_dict_tensor_t *tensor);

/* Copies `byte_len` bytes of a tensor's elements, row by row from `byte_offset` on, from whatever
 * memory they are in. A strided tensor gives whole elements.
 *
 * Errors: DCL_STATUS_INVALID_BUFFER if the range is not in the tensor. [local, shared] */
dcl_status_t dcl_tensor_dict_read(dcl_tensor_dict_t *dict, const char *name, size_t byte_offset,
                                  void *bytes, size_t byte_len);

/* Copies `byte_len` bytes to a tensor's elements, from `byte_offset` on, in whatever memory they
 * are.
 *
 * Errors: DCL_STATUS_INVALID_BUFFER if the range is not in the tensor, or the tensor is strided or
 * read-only. [local, exclusive] */
dcl_status_t dcl_tensor_dict_write(dcl_tensor_dict_t *dict, const char *name, size_t byte_offset,
                                   const void *bytes, size_t byte_len);

/* Returns the number of texts about the dictionary, which a safetensors file has as __metadata__.
 * [local, shared] */
dcl_status_t dcl_tensor_dict_get_nb_metadata(dcl_tensor_dict_t *dict, int32_t *nb_metadata);

/* Copies out the key of a text by its index, in alphabetical order. [local, shared] */
dcl_status_t dcl_tensor_dict_get_metadata_key(dcl_tensor_dict_t *dict, int32_t index, char *buffer,
                                              size_t capacity, size_t *length);

/* Copies out the text of a key.
 *
 * Errors: DCL_STATUS_INVALID_ARGUMENT if the dictionary has no text of this key. [local, shared] */
dcl_status_t dcl_tensor_dict_get_metadata(dcl_tensor_dict_t *dict, const char *key, char *buffer,
                                          size_t capacity, size_t *length);

/* Sets the text of a key. NULL removes it. [local, exclusive] */
dcl_status_t dcl_tensor_dict_set_metadata(dcl_tensor_dict_t *dict, const char *key,
                                          const char *text);

/* Is told how many bytes of all elements a rank has sent or received. It must not call the
 * communicator, and must not leave by an exception or longjmp. */
typedef void (*dcl_progress_callback_t)(uint64_t byte_count, uint64_t total_bytes, void *user_data);

/* How a dictionary is broadcast. */
typedef struct dcl_broadcast_options {
    size_t struct_size;
    /* The rank that gives its dictionary. All ranks pass the same. */
    int32_t src;
    /* Where a receiver's tensors lie at the end: the number of a GPU or DCL_DEVICE_HOST. If it is
     * DCL_DEVICE_UNSET, a tensor that the receiver has is filled where it is, and a new one is in
     * the memory of the communicator. */
    int32_t device;
    /* The backend that the communicator has to have. NULL means any. */
    const char *backend;
    /* Not 0: what arrives ends in host memory, whatever `device` says. */
    int32_t offload_to_cpu;
    /* Not 0: new tensors are in pinned host memory. It needs CUDA. */
    int32_t pin_memory;
    /* Not 0: receivers get read-only views of one copy, in memory that the processes share. It
     * needs the host backend, and all ranks pass the same. The copy is freed when all processes
     * have freed their views. */
    int32_t shared;
    /* 0. */
    int32_t reserved;
    /* Called on this rank after each piece. With `shared`, a receiver calls it once. May be NULL.
     * The callback and `user_data` must stay valid until the broadcast is done. */
    dcl_progress_callback_t progress;
    void *user_data;
} dcl_broadcast_options_t;
#define DCL_BROADCAST_OPTIONS_INIT \
    {sizeof(dcl_broadcast_options_t), 0, DCL_DEVICE_UNSET, NULL, 0, 0, 0, 0, NULL, NULL}

/* Writes what DCL_BROADCAST_OPTIONS_INIT has to a structure of `struct_size` bytes.
 * [local, shared] */
dcl_status_t dcl_broadcast_options_init(dcl_broadcast_options_t *options, size_t struct_size);

/* Gives every rank the tensors of the source's dictionary. `options` may be NULL.
 *
 * The source's dictionary stays as it is. On another rank a tensor with the name, type and
 * dimensions of one that arrives is filled in place; one that the rank lacks is added at the end;
 * all others stay. With `shared`, and if the rank's tensor is read-only or lies elsewhere than
 * `device` says, a new tensor takes its place: addresses of the old one end, and borrowed memory is
 * not written.
 *
 * `stream` and `work` are as in dcl_execution_context_enqueue; a CUDA stream is
 * DCL_STATUS_UNSUPPORTED. Until the broadcast has ended, other calls on the dictionary return
 * DCL_STATUS_BUSY. The caller may free the work, the stream and the dictionary meanwhile; the
 * broadcast continues.
 *
 * Errors of one rank, for which the other ranks wait until their timeout:
 * - DCL_STATUS_INVALID_HANDLE, and DCL_STATUS_BUSY if another call uses the dictionary.
 * - DCL_STATUS_UNSUPPORTED for a CUDA stream.
 * Errors that every rank gets, after which no dictionary has changed and the communicator still
 * works. If one rank finds the error, the message of the others names that rank and the reason:
 * - DCL_STATUS_INVALID_ARGUMENT: an option has a value that no broadcast has, or does not fit the
 *   communicator.
 * - DCL_STATUS_UNSUPPORTED: `pin_memory` without CUDA, a GPU that is not there, or `shared` on
 *   another backend than the host's.
 * - DCL_STATUS_DISAGREEMENT: the ranks pass different sources, or not all pass `shared`.
 * - DCL_STATUS_INVALID_BUFFER: a rank has a tensor of a name that arrives, with another type or
 *   other dimensions.
 * - DCL_STATUS_SYSTEM: a rank has no memory for what would arrive.
 * Any other error ends the communicator. On a receiver, the elements of the tensors that were to be
 * filled in place are then undefined, and no tensor has been added; with `shared` its dictionary
 * has not changed. [collective, shared] */
dcl_status_t dcl_broadcast_tensor_dict(dcl_communicator_t *communicator, dcl_tensor_dict_t *dict,
                                       const dcl_broadcast_options_t *options, dcl_stream_t *stream,
                                       dcl_work_t **work);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* DISTCOLLECTIVE_H */
