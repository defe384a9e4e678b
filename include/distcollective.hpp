// distcollective: the C header with types and ownership, for C++17.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
// distcollective.h documents every function. This header wraps it and changes no behaviour.
//
// Names. A method has the name of its C function without the type's prefix:
// dcl_engine_get_tensor_shape is Engine::get_tensor_shape. `new` is a keyword, so dcl_network_new
// is Network::create. Enumerators are spelled as TensorRT's.
//
// Ownership. These classes own a handle: Network, DistCollective, BoundLayer, Engine,
// ExecutionContext, Environment, Communicator, Buffer, Stream and Work. They can be moved but not
// copied, and the destructor frees the handle. Tensor, Layer and DistCollectiveLayer are views of a
// handle that its network or a DistCollective owns. They can be copied. After the owner is freed,
// their methods return Status::kINVALID_HANDLE. An object that was default-constructed or moved
// from has no handle, and its methods return Status::kINVALID_HANDLE too. There is one exception: a
// Stream without a handle is the calling thread.
//
// Errors. A call that can fail returns a Result, and the compiler warns if the caller ignores it:
//
//     Engine engine = Engine::build(network).value();              // throws the Error
//     if (auto engine = Engine::build(network); !engine) { ... engine.error().message() ... }
//
// Without exceptions (-fno-exceptions), value() of a failed call prints the error and aborts. All
// translation units of a program must be compiled with the same setting.
//
// const. A method is const if it only reads, or if several threads may call it at once ([shared] in
// C).
#ifndef DISTCOLLECTIVE_HPP
#define DISTCOLLECTIVE_HPP

#if __cplusplus < 201703L
#error "distcollective.hpp needs C++17; distcollective.h will do for older programs"
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distcollective.h"

namespace distcollective {

// -------------------------------------------------------------------------------------------------
// Values
// -------------------------------------------------------------------------------------------------

enum class Status : dcl_status_t {
    kSUCCESS = DCL_STATUS_SUCCESS,
    kINVALID_ARGUMENT = DCL_STATUS_INVALID_ARGUMENT,
    kINVALID_HANDLE = DCL_STATUS_INVALID_HANDLE,
    kINVALID_NETWORK = DCL_STATUS_INVALID_NETWORK,
    kINVALID_PLAN = DCL_STATUS_INVALID_PLAN,
    kINVALID_SHAPE = DCL_STATUS_INVALID_SHAPE,
    kINVALID_BUFFER = DCL_STATUS_INVALID_BUFFER,
    kINVALID_COMMUNICATOR = DCL_STATUS_INVALID_COMMUNICATOR,
    kNOT_READY = DCL_STATUS_NOT_READY,
    kUNSUPPORTED = DCL_STATUS_UNSUPPORTED,
    kBUSY = DCL_STATUS_BUSY,
    kBUFFER_TOO_SMALL = DCL_STATUS_BUFFER_TOO_SMALL,
    kDISAGREEMENT = DCL_STATUS_DISAGREEMENT,
    kDEADLINE_EXCEEDED = DCL_STATUS_DEADLINE_EXCEEDED,
    kPEER_LOST = DCL_STATUS_PEER_LOST,
    kABORTED = DCL_STATUS_ABORTED,
    kPLUGIN = DCL_STATUS_PLUGIN,
    kSYSTEM = DCL_STATUS_SYSTEM,
    kINTERNAL = DCL_STATUS_INTERNAL,
    kINTERRUPTED = DCL_STATUS_INTERRUPTED,
    kPENDING = DCL_STATUS_PENDING,
    kNOT_A_MEMBER = DCL_STATUS_NOT_A_MEMBER,
    kRUN_REFUSED = DCL_STATUS_RUN_REFUSED
};

enum class DataType : dcl_data_type_t {
    kFLOAT = DCL_DATA_TYPE_FLOAT,
    kHALF = DCL_DATA_TYPE_HALF,
    kINT8 = DCL_DATA_TYPE_INT8,
    kINT32 = DCL_DATA_TYPE_INT32,
    kBOOL = DCL_DATA_TYPE_BOOL,
    kUINT8 = DCL_DATA_TYPE_UINT8,
    kFP8 = DCL_DATA_TYPE_FP8,
    kBF16 = DCL_DATA_TYPE_BF16,
    kINT64 = DCL_DATA_TYPE_INT64,
    kFP8_E5M2 = DCL_DATA_TYPE_FP8_E5M2,
    kFLOAT64 = DCL_DATA_TYPE_FLOAT64,
    kUINT32 = DCL_DATA_TYPE_UINT32,
    kUINT64 = DCL_DATA_TYPE_UINT64
};

enum class CollectiveOperation : dcl_collective_operation_t {
    kALL_REDUCE = DCL_COLLECTIVE_ALL_REDUCE,
    kALL_GATHER = DCL_COLLECTIVE_ALL_GATHER,
    kBROADCAST = DCL_COLLECTIVE_BROADCAST,
    kREDUCE = DCL_COLLECTIVE_REDUCE,
    kREDUCE_SCATTER = DCL_COLLECTIVE_REDUCE_SCATTER,
    kALL_TO_ALL = DCL_COLLECTIVE_ALL_TO_ALL,
    kGATHER = DCL_COLLECTIVE_GATHER,
    kSCATTER = DCL_COLLECTIVE_SCATTER
};

enum class ReduceOperation : dcl_reduce_operation_t {
    kSUM = DCL_REDUCE_SUM,
    kPROD = DCL_REDUCE_PROD,
    kMAX = DCL_REDUCE_MAX,
    kMIN = DCL_REDUCE_MIN,
    kAVG = DCL_REDUCE_AVG,
    kNONE = DCL_REDUCE_NONE,
    kBAND = DCL_REDUCE_BAND,
    kBOR = DCL_REDUCE_BOR,
    kBXOR = DCL_REDUCE_BXOR
};

enum class ElementWiseOperation : dcl_elementwise_operation_t {
    kSUM = DCL_ELEMENTWISE_SUM,
    kPROD = DCL_ELEMENTWISE_PROD,
    kMAX = DCL_ELEMENTWISE_MAX,
    kMIN = DCL_ELEMENTWISE_MIN,
    kSUB = DCL_ELEMENTWISE_SUB,
    kDIV = DCL_ELEMENTWISE_DIV
};

enum class Determinism : dcl_determinism_t { kBACKEND = DCL_DETERMINISM_BACKEND, kEXACT = DCL_DETERMINISM_EXACT };

enum class WireType : dcl_wire_type_t {
    kNONE = DCL_WIRE_TYPE_NONE,
    kFLOAT16 = DCL_WIRE_TYPE_FLOAT16,
    kBFLOAT16 = DCL_WIRE_TYPE_BFLOAT16
};

enum class TensorIOMode : dcl_tensor_io_mode_t {
    kNONE = DCL_TENSOR_IO_MODE_NONE,
    kINPUT = DCL_TENSOR_IO_MODE_INPUT,
    kOUTPUT = DCL_TENSOR_IO_MODE_OUTPUT
};

enum class OptProfileSelector : dcl_opt_profile_selector_t {
    kMIN = DCL_OPT_PROFILE_MIN,
    kOPT = DCL_OPT_PROFILE_OPT,
    kMAX = DCL_OPT_PROFILE_MAX
};

enum class Severity : dcl_severity_t {
    kERROR = DCL_SEVERITY_ERROR,
    kWARNING = DCL_SEVERITY_WARNING,
    kINFO = DCL_SEVERITY_INFO,
    kVERBOSE = DCL_SEVERITY_VERBOSE
};

enum class InPlace : dcl_in_place_t {
    kNEVER = DCL_IN_PLACE_NEVER,
    kSAME_ADDRESS = DCL_IN_PLACE_SAME_ADDRESS,
    kINPUT_AT = DCL_IN_PLACE_INPUT_AT,
    kOUTPUT_AT = DCL_IN_PLACE_OUTPUT_AT,
    kUNUSED = DCL_IN_PLACE_UNUSED
};

// Dimensions, as a list: Dims{-1, 4096}. If there are more than DCL_MAX_DIMS, the first call that
// takes them returns Status::kINVALID_ARGUMENT.
struct Dims : dcl_dims_t {
    Dims() noexcept : dcl_dims_t{} {}
    Dims(const dcl_dims_t &dims) noexcept : dcl_dims_t(dims) {}
    Dims(std::initializer_list<std::int64_t> dims) noexcept : dcl_dims_t{} {
        nb_dims = static_cast<std::int32_t>(dims.size());
        std::copy_n(dims.begin(), size(), d);
    }

    std::size_t size() const noexcept {
        return static_cast<std::size_t>(std::clamp<std::int32_t>(nb_dims, 0, DCL_MAX_DIMS));
    }
    const std::int64_t *begin() const noexcept { return d; }
    const std::int64_t *end() const noexcept { return d + size(); }
};

inline bool operator==(const Dims &a, const Dims &b) noexcept {
    return a.nb_dims == b.nb_dims && std::equal(a.begin(), a.end(), b.begin(), b.end());
}
inline bool operator!=(const Dims &a, const Dims &b) noexcept { return !(a == b); }

using Bytes = std::vector<std::uint8_t>;
using Ranks = std::vector<std::int64_t>;
using Timeout = std::chrono::milliseconds;
using NcclId = std::array<std::uint8_t, DCL_NCCL_ID_BYTES>;

inline constexpr Timeout default_timeout{DCL_TIMEOUT_DEFAULT};
inline constexpr std::int32_t no_color = DCL_NO_COLOR;
// The `device` of host memory.
inline constexpr std::int32_t host_memory = -1;
// A `device` that the caller does not set.
inline constexpr std::int32_t unset_device = DCL_DEVICE_UNSET;
// The sender of a receive from any rank.
inline constexpr std::int32_t any_source = DCL_ANY_SOURCE;

// The C structures with their initial values. The caller owns their strings, and the library reads
// them during the call only. A DictTensor that get_tensor fills in has the dictionary's type name
// and address; insert borrows the address. The functions that do the same for other languages have
// no wrapper here: dcl_execution_context_options_init, dcl_environment_config_init,
// dcl_bootstrap_config_init, dcl_plugin_init, dcl_plugin_creator_init, dcl_message_init,
// dcl_dict_tensor_init and dcl_broadcast_options_init.
struct ExecutionContextOptions : dcl_execution_context_options_t {
    ExecutionContextOptions() noexcept : dcl_execution_context_options_t DCL_EXECUTION_CONTEXT_OPTIONS_INIT {}
};
struct EnvironmentConfig : dcl_environment_config_t {
    EnvironmentConfig() noexcept : dcl_environment_config_t DCL_ENVIRONMENT_CONFIG_INIT {}
};
struct BootstrapConfig : dcl_bootstrap_config_t {
    BootstrapConfig() noexcept : dcl_bootstrap_config_t DCL_BOOTSTRAP_CONFIG_INIT {}
};
struct CommunicatorOptions : dcl_communicator_options_t {
    CommunicatorOptions() noexcept : dcl_communicator_options_t DCL_COMMUNICATOR_OPTIONS_INIT {}
};
// Its texts are valid as long as the Environment.
struct EnvironmentInfo : dcl_environment_info_t {
    EnvironmentInfo() noexcept : dcl_environment_info_t DCL_ENVIRONMENT_INFO_INIT {}
};
struct DictTensor : dcl_dict_tensor_t {
    DictTensor() noexcept : dcl_dict_tensor_t DCL_DICT_TENSOR_INIT {}
    DictTensor(DataType data_type, const Dims &dims, void *address = nullptr,
               std::int32_t device = host_memory) noexcept
        : DictTensor() {
        this->data_type = static_cast<dcl_data_type_t>(data_type);
        this->dims = dims;
        this->address = address;
        this->device = device;
    }
};
struct BroadcastOptions : dcl_broadcast_options_t {
    BroadcastOptions() noexcept : dcl_broadcast_options_t DCL_BROADCAST_OPTIONS_INIT {}
};
struct Message : dcl_message_t {
    Message() noexcept : dcl_message_t DCL_MESSAGE_INIT {}

    static Message send(const void *buffer, std::size_t count, DataType data_type, std::int32_t dst,
                        std::int32_t tag = 0) noexcept {
        Message message = recv(const_cast<void *>(buffer), count, data_type, dst, tag);
        message.is_send = 1;
        return message;
    }
    static Message recv(void *buffer, std::size_t count, DataType data_type, std::int32_t src,
                        std::int32_t tag = 0) noexcept {
        Message message;
        message.buffer = buffer;
        message.count = count;
        message.data_type = static_cast<dcl_data_type_t>(data_type);
        message.peer = src;
        message.tag = tag;
        return message;
    }
};

// What a receive has got: from which rank, and how many elements.
struct Received {
    std::int32_t source;
    std::size_t count;
};

// -------------------------------------------------------------------------------------------------
// Errors
// -------------------------------------------------------------------------------------------------

inline const char *status_name(Status status) noexcept { return dcl_status_name(static_cast<dcl_status_t>(status)); }

// Why a call failed: a status, a message, and the communicator rank on which it failed, or -1 if
// that is not known.
class Error : public std::exception {
  public:
    Error() = default;
    Error(Status status, std::string message, std::int32_t rank = -1)
        : status_(status), message_(std::move(message)), rank_(rank) {}

    // The error of this thread's last call, which failed with this status.
    static Error last(dcl_status_t status) {
        std::string message(dcl_last_error_message(nullptr, 0), '\0');
        dcl_last_error_message(message.data(), message.size() + 1);
        return Error(static_cast<Status>(status), std::move(message), dcl_last_error_rank());
    }

    Status status() const noexcept { return status_; }
    const std::string &message() const noexcept { return message_; }
    std::int32_t rank() const noexcept { return rank_; }
    const char *what() const noexcept override { return message_.c_str(); }

    // Throws the error. Without exceptions it prints the error and aborts.
    [[noreturn]] void raise() const {
#ifdef __cpp_exceptions
        throw *this;
#else
        std::fprintf(stderr, "%s: %s\n", status_name(status_), what());
        std::abort();
#endif
    }

  private:
    Status status_ = Status::kSUCCESS;
    std::string message_;
    std::int32_t rank_ = -1;
};

// A call's value, or the error with which it failed. `*` and `->` are short for value().
template <typename T>
class [[nodiscard]] Result {
  public:
    Result(T value) : value_(std::move(value)) {}
    Result(Error error) : error_(std::move(error)) {}

    bool has_value() const noexcept { return value_.has_value(); }
    explicit operator bool() const noexcept { return has_value(); }

    T &value() & {
        require();
        return *value_;
    }
    const T &value() const & {
        require();
        return *value_;
    }
    T value() && {
        require();
        return std::move(*value_);
    }

    T &operator*() & { return value(); }
    const T &operator*() const & { return value(); }
    T operator*() && { return std::move(*this).value(); }
    T *operator->() { return &value(); }
    const T *operator->() const { return &value(); }

    // If the call succeeded, its status is kSUCCESS.
    const Error &error() const noexcept { return error_; }

  private:
    void require() const {
        if (!has_value()) error_.raise();
    }

    std::optional<T> value_;
    Error error_;
};

template <>
class [[nodiscard]] Result<void> {
  public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}

    bool has_value() const noexcept { return error_.status() == Status::kSUCCESS; }
    explicit operator bool() const noexcept { return has_value(); }
    void value() const {
        if (!has_value()) error_.raise();
    }
    const Error &error() const noexcept { return error_; }

  private:
    Error error_;
};

// -------------------------------------------------------------------------------------------------
// Implementation
// -------------------------------------------------------------------------------------------------

namespace detail {

template <typename Enum>
constexpr std::int32_t number(Enum value) noexcept {
    return static_cast<std::int32_t>(value);
}

inline Result<void> check(dcl_status_t status) {
    if (status != DCL_STATUS_SUCCESS) return Error::last(status);
    return {};
}

// Calls a function whose last argument is an output: an `Out` in C, a `T` here.
template <typename Out, typename T = Out, typename Function, typename... Arguments>
Result<T> output(Function function, Arguments... arguments) {
    Out out{};
    if (auto called = check(function(arguments..., &out)); !called) return called.error();
    return T(out);
}

// Calls a function whose last arguments are (buffer, capacity, length) twice: for the length, and
// then for the text or the bytes.
template <typename Container, typename Function, typename... Arguments>
Result<Container> copy_out(Function function, Arguments... arguments) {
    Container copy;
    std::size_t length = 0;
    if (auto asked = check(function(arguments..., nullptr, std::size_t{0}, &length)); !asked) return asked.error();
    copy.resize(length + 1); // text ends with a NUL
    if (auto copied = check(function(arguments..., copy.data(), copy.size(), &length)); !copied) return copied.error();
    copy.resize(length);
    return copy;
}

// Copies out ranks by (ranks, capacity, length).
template <typename Function>
Result<Ranks> copy_ranks(Function function) {
    std::size_t length = 0;
    if (auto asked = check(function(nullptr, 0, &length)); !asked) return asked.error();
    Ranks ranks(length);
    if (auto copied = check(function(ranks.data(), ranks.size(), &length)); !copied) return copied.error();
    return ranks;
}

// A view: a handle that another object owns.
template <typename T>
class Handle {
  public:
    using Raw = T;

    Handle() = default;
    explicit Handle(Raw *raw) noexcept : raw_(raw) {}

    Raw *get() const noexcept { return raw_; }
    explicit operator bool() const noexcept { return raw_ != nullptr; }

  protected:
    Raw *raw_ = nullptr;
};

// A `View` that owns its handle.
template <typename View, dcl_status_t (*free_handle)(typename View::Raw *)>
class Owned : public View {
  public:
    using Raw = typename View::Raw;

    Owned() = default;
    // Takes ownership of `raw`.
    explicit Owned(Raw *raw) noexcept : View(raw) {}
    Owned(Owned &&other) noexcept : View(other.release()) {}
    Owned &operator=(Owned &&other) noexcept {
        if (this != &other) reset(other.release());
        return *this;
    }
    ~Owned() { reset(); }

    // Gives up ownership: the caller frees the handle.
    [[nodiscard]] Raw *release() noexcept { return std::exchange(this->raw_, nullptr); }
    void reset(Raw *raw = nullptr) noexcept {
        if (Raw *old = std::exchange(this->raw_, raw)) free_handle(old);
    }
};

} // namespace detail

// -------------------------------------------------------------------------------------------------
// The library
// -------------------------------------------------------------------------------------------------

inline std::uint32_t version() noexcept { return dcl_version(); }
inline const char *version_string() noexcept { return dcl_version_string(); }

// These return NULL, or 0, for an unknown number.
inline const char *data_type_name(DataType data_type) noexcept { return dcl_data_type_name(detail::number(data_type)); }
inline std::size_t data_type_size(DataType data_type) noexcept { return dcl_data_type_size(detail::number(data_type)); }
inline const char *collective_operation_name(CollectiveOperation operation) noexcept {
    return dcl_collective_operation_name(detail::number(operation));
}
inline const char *reduce_operation_name(ReduceOperation reduce_op) noexcept {
    return dcl_reduce_operation_name(detail::number(reduce_op));
}

// A plugin that returns an error status calls this to explain it.
inline Result<void> set_last_error(Status status, const std::string &message) {
    return detail::check(dcl_set_last_error(detail::number(status), message.c_str()));
}

// `user_data` must stay valid until the caller sets another callback or NULL.
inline Result<void> set_log_callback(dcl_log_callback_t callback, void *user_data, Severity most_verbose) {
    return detail::check(dcl_set_log_callback(callback, user_data, detail::number(most_verbose)));
}

// Calls `callback` in waits. `user_data` must stay valid until the caller sets another callback or
// NULL.
inline Result<void> set_interrupt_callback(dcl_interrupt_callback_t callback, void *user_data) {
    return detail::check(dcl_set_interrupt_callback(callback, user_data));
}

// -------------------------------------------------------------------------------------------------
// Streams and work
// -------------------------------------------------------------------------------------------------

// A stream. Without a handle it is the calling thread: a call on it is done when it returns.
class Stream : public detail::Owned<detail::Handle<dcl_stream_t>, dcl_stream_free> {
  public:
    using Owned::Owned;

    static Result<Stream> new_worker() { return detail::output<dcl_stream_t *, Stream>(dcl_stream_new_worker); }
    static Result<Stream> new_cuda(std::int32_t device) {
        return detail::output<dcl_stream_t *, Stream>(dcl_stream_new_cuda, device);
    }
    // Borrows the caller's cudaStream_t. It must outlive this object and all calls that were
    // enqueued through it.
    static Result<Stream> from_cuda(void *cuda_stream, std::int32_t device) {
        return detail::output<dcl_stream_t *, Stream>(dcl_stream_from_cuda, cuda_stream, device);
    }

    Result<void *> get_cuda() const { return detail::output<void *>(dcl_stream_get_cuda, get()); }
    Result<void> synchronize() const { return detail::check(dcl_stream_synchronize(get())); }
};

// An enqueued call. If the caller does not wait for it, it continues and its error is lost.
class Work : public detail::Owned<detail::Handle<dcl_work_t>, dcl_work_free> {
  public:
    using Owned::Owned;

    Result<bool> is_done() { return detail::output<std::int32_t, bool>(dcl_work_is_done, get()); }
    Result<void> wait() { return detail::check(dcl_work_wait(get())); }
    // If the work has not ended within the timeout, the error's status is kPENDING.
    Result<void> wait_for(Timeout timeout) { return detail::check(dcl_work_wait_for(get(), timeout.count())); }
    // What message `index` has received, after a wait.
    Result<Received> get_received(std::int32_t index = 0) {
        Received received{};
        auto got = detail::check(dcl_work_get_received(get(), index, &received.source, &received.count));
        if (!got) return got.error();
        return received;
    }
};

namespace detail {

// Calls a function whose last argument is a work handle. `work` may be NULL.
template <typename Function, typename... Arguments>
Result<void> enqueue(Work *work, Function function, Arguments... arguments) {
    dcl_work_t *raw = nullptr;
    auto enqueued = check(function(arguments..., work != nullptr ? &raw : nullptr));
    if (enqueued && work != nullptr) work->reset(raw);
    return enqueued;
}

} // namespace detail

// -------------------------------------------------------------------------------------------------
// Buffers
// -------------------------------------------------------------------------------------------------

class Buffer : public detail::Owned<detail::Handle<dcl_buffer_t>, dcl_buffer_free> {
  public:
    using Owned::Owned;

    static Result<Buffer> create(std::int32_t device, std::size_t byte_len) {
        return detail::output<dcl_buffer_t *, Buffer>(dcl_buffer_new, device, byte_len);
    }

    Result<void *> get_address() { return detail::output<void *>(dcl_buffer_get_address, get()); }
    Result<std::size_t> get_byte_len() const { return detail::output<std::size_t>(dcl_buffer_get_byte_len, get()); }
    Result<void> read(std::size_t byte_offset, void *bytes, std::size_t byte_len) const {
        return detail::check(dcl_buffer_read(get(), byte_offset, bytes, byte_len));
    }
    Result<void> write(std::size_t byte_offset, const void *bytes, std::size_t byte_len) {
        return detail::check(dcl_buffer_write(get(), byte_offset, bytes, byte_len));
    }
};

// -------------------------------------------------------------------------------------------------
// Dictionaries of tensors
// -------------------------------------------------------------------------------------------------

// Tensors by name, in an order. Tensors with an address borrow the caller's memory, which must stay
// valid until they are removed or replaced.
class TensorDict : public detail::Owned<detail::Handle<dcl_tensor_dict_t>, dcl_tensor_dict_free> {
  public:
    using Owned::Owned;

    static Result<TensorDict> create() { return detail::output<dcl_tensor_dict_t *, TensorDict>(dcl_tensor_dict_new); }
    static Result<TensorDict> load(const std::string &path) {
        return detail::output<dcl_tensor_dict_t *, TensorDict>(dcl_tensor_dict_load, path.c_str());
    }
    // Until the dictionary is gone, no program may change the file.
    static Result<TensorDict> map(const std::string &path) {
        return detail::output<dcl_tensor_dict_t *, TensorDict>(dcl_tensor_dict_map, path.c_str());
    }
    Result<void> save(const std::string &path) const {
        return detail::check(dcl_tensor_dict_save(get(), path.c_str()));
    }

    Result<void> insert(const std::string &name, const DictTensor &tensor) {
        return detail::check(dcl_tensor_dict_insert(get(), name.c_str(), &tensor));
    }
    Result<void> remove(const std::string &name) { return detail::check(dcl_tensor_dict_remove(get(), name.c_str())); }

    Result<std::int32_t> get_nb_tensors() const {
        return detail::output<std::int32_t>(dcl_tensor_dict_get_nb_tensors, get());
    }
    Result<std::string> get_name(std::int32_t index) const {
        return detail::copy_out<std::string>(dcl_tensor_dict_get_name, get(), index);
    }
    Result<DictTensor> get_tensor(const std::string &name) const {
        return detail::output<DictTensor>(dcl_tensor_dict_get_tensor, get(), name.c_str());
    }
    Result<void> read(const std::string &name, std::size_t byte_offset, void *bytes, std::size_t byte_len) const {
        return detail::check(dcl_tensor_dict_read(get(), name.c_str(), byte_offset, bytes, byte_len));
    }
    Result<void> write(const std::string &name, std::size_t byte_offset, const void *bytes, std::size_t byte_len) {
        return detail::check(dcl_tensor_dict_write(get(), name.c_str(), byte_offset, bytes, byte_len));
    }

    Result<std::int32_t> get_nb_metadata() const {
        return detail::output<std::int32_t>(dcl_tensor_dict_get_nb_metadata, get());
    }
    Result<std::string> get_metadata_key(std::int32_t index) const {
        return detail::copy_out<std::string>(dcl_tensor_dict_get_metadata_key, get(), index);
    }
    Result<std::string> get_metadata(const std::string &key) const {
        return detail::copy_out<std::string>(dcl_tensor_dict_get_metadata, get(), key.c_str());
    }
    Result<void> set_metadata(const std::string &key, const std::string &text) {
        return detail::check(dcl_tensor_dict_set_metadata(get(), key.c_str(), text.c_str()));
    }
    Result<void> remove_metadata(const std::string &key) {
        return detail::check(dcl_tensor_dict_set_metadata(get(), key.c_str(), nullptr));
    }
};

// -------------------------------------------------------------------------------------------------
// Communicators
// -------------------------------------------------------------------------------------------------

inline Result<NcclId> new_nccl_id() {
    NcclId id{};
    if (auto made = detail::check(dcl_nccl_id_new(id.data())); !made) return made.error();
    return id;
}

class Communicator : public detail::Owned<detail::Handle<dcl_communicator_t>, dcl_communicator_free> {
  public:
    using Owned::Owned;

    // Element r is rank r. Use each element from a thread of its own.
    static Result<std::vector<Communicator>> new_in_process(std::int32_t world_size,
                                                            const std::string &backend = "auto",
                                                            Timeout timeout = default_timeout) {
        std::vector<dcl_communicator_t *> raw(room(world_size));
        std::vector<Communicator> communicators;
        communicators.reserve(raw.size());
        auto made =
            detail::check(dcl_communicator_new_in_process(backend.c_str(), world_size, timeout.count(), raw.data()));
        if (!made) return made.error();
        for (dcl_communicator_t *communicator : raw) communicators.emplace_back(communicator);
        return communicators;
    }
    // Returns this process's ranks. Use each from a thread of its own.
    static Result<std::vector<Communicator>> bootstrap(const BootstrapConfig &config) {
        std::vector<dcl_communicator_t *> raw(room(config.local_ranks));
        std::vector<Communicator> communicators;
        communicators.reserve(raw.size());
        if (auto met = detail::check(dcl_communicator_bootstrap(&config, raw.data())); !met) return met.error();
        for (dcl_communicator_t *communicator : raw) communicators.emplace_back(communicator);
        return communicators;
    }
    static Result<Communicator> new_nccl(const NcclId &id, std::int32_t rank, std::int32_t world_size,
                                         std::int32_t device, Timeout timeout = default_timeout) {
        return detail::output<dcl_communicator_t *, Communicator>(dcl_communicator_new_nccl, id.data(), rank,
                                                                  world_size, device, timeout.count());
    }
    // Borrows the caller's ncclComm_t. It must outlive this object and everything created from it.
    static Result<Communicator> from_nccl(void *nccl_comm, Timeout timeout = default_timeout) {
        return detail::output<dcl_communicator_t *, Communicator>(dcl_communicator_from_nccl, nccl_comm,
                                                                  timeout.count());
    }
    // A communicator of the ranks of the caller's MPI_Comm, as (std::uint64_t)comm.
    static Result<Communicator> from_mpi(std::uint64_t mpi_comm, Timeout timeout = default_timeout) {
        return detail::output<dcl_communicator_t *, Communicator>(dcl_communicator_from_mpi, mpi_comm,
                                                                  timeout.count());
    }

    // Frees the handle, also if the call fails.
    Result<void> finalize() { return detail::check(dcl_communicator_finalize(release())); }

    Result<std::int32_t> get_rank() const { return detail::output<std::int32_t>(dcl_communicator_get_rank, get()); }
    Result<std::int32_t> get_world_size() const {
        return detail::output<std::int32_t>(dcl_communicator_get_world_size, get());
    }
    Result<std::string> get_backend() const {
        return detail::copy_out<std::string>(dcl_communicator_get_backend, get());
    }
    Result<std::int32_t> get_device() const { return detail::output<std::int32_t>(dcl_communicator_get_device, get()); }
    Result<CommunicatorOptions> get_options() const {
        return detail::output<CommunicatorOptions>(dcl_communicator_get_options, get());
    }
    // Another handle on the same rank.
    Result<Communicator> with_options(const CommunicatorOptions &options) const {
        return detail::output<dcl_communicator_t *, Communicator>(dcl_communicator_with_options, get(), &options);
    }

    // The value of the session config entry "distcollective.communicator" of ONNX Runtime.
    Result<std::string> session_value() const {
        return detail::copy_out<std::string>(dcl_communicator_session_value, get());
    }

    Result<void> check() const { return detail::check(dcl_communicator_check(get())); }
    Result<void> abort(const std::string &reason) const {
        return detail::check(dcl_communicator_abort(get(), reason.c_str()));
    }
    // What this rank does for one request of a server, until end_request.
    Result<void> begin_request(std::uint64_t id) const {
        return detail::check(dcl_communicator_begin_request(get(), id));
    }
    Result<void> end_request() const { return detail::check(dcl_communicator_end_request(get(), nullptr)); }
    Result<void> end_request(const std::string &failure) const {
        return detail::check(dcl_communicator_end_request(get(), failure.c_str()));
    }
    Result<void> barrier() const { return detail::check(dcl_communicator_barrier(get())); }
    Result<void> monitored_barrier(Timeout timeout) const {
        return detail::check(dcl_communicator_monitored_barrier(get(), timeout.count()));
    }
    // If `work` is not NULL, *work receives a handle of the barrier.
    Result<void> enqueue_barrier(const Stream &stream, Work *work = nullptr) const {
        return detail::enqueue(work, dcl_communicator_enqueue_barrier, get(), stream.get());
    }
    // Another handle on the communicator's own stream.
    Result<Stream> get_stream() const {
        return detail::output<dcl_stream_t *, Stream>(dcl_communicator_get_stream, get());
    }

    Result<Ranks> get_global_ranks() const {
        return detail::copy_ranks([this](std::int64_t *ranks, std::size_t capacity, std::size_t *length) {
            return dcl_communicator_get_global_ranks(get(), ranks, capacity, length);
        });
    }
    Result<std::int32_t> get_global_rank(std::int32_t rank) const {
        return detail::output<std::int32_t>(dcl_communicator_get_global_rank, get(), rank);
    }
    Result<std::int32_t> get_group_rank(std::int32_t global_rank) const {
        return detail::output<std::int32_t>(dcl_communicator_get_group_rank, get(), global_rank);
    }

    // A rank that joins no group receives a Communicator without a handle.
    Result<Communicator> split(std::int32_t color, std::int32_t key = 0) const {
        return detail::output<dcl_communicator_t *, Communicator>(dcl_communicator_split, get(), color, key);
    }
    Result<Communicator> new_group(const Ranks &ranks) const {
        return detail::output<dcl_communicator_t *, Communicator>(dcl_communicator_new_group, get(), ranks.data(),
                                                                  static_cast<std::int64_t>(ranks.size()));
    }

    Result<Buffer> allocate(std::size_t byte_len) const {
        return detail::output<dcl_buffer_t *, Buffer>(dcl_communicator_allocate, get(), byte_len);
    }

    // Eager collectives. The caller's memory must stay valid until the call is done. If `work` is
    // not NULL, *work receives a handle of the call.
    Result<void> all_reduce(const void *input, void *output, std::size_t count, DataType data_type,
                            ReduceOperation reduce_op, const Stream &stream = Stream(), Work *work = nullptr) const {
        return detail::enqueue(work, dcl_all_reduce, get(), input, output, count, detail::number(data_type),
                               detail::number(reduce_op), stream.get());
    }
    Result<void> all_gather(const void *input, void *output, std::size_t count, DataType data_type,
                            const Stream &stream = Stream(), Work *work = nullptr) const {
        return detail::enqueue(work, dcl_all_gather, get(), input, output, count, detail::number(data_type),
                               stream.get());
    }
    Result<void> broadcast(const void *input, void *output, std::size_t count, DataType data_type, std::int32_t root,
                           const Stream &stream = Stream(), Work *work = nullptr) const {
        return detail::enqueue(work, dcl_broadcast, get(), input, output, count, detail::number(data_type), root,
                               stream.get());
    }
    Result<void> reduce(const void *input, void *output, std::size_t count, DataType data_type,
                        ReduceOperation reduce_op, std::int32_t root, const Stream &stream = Stream(),
                        Work *work = nullptr) const {
        return detail::enqueue(work, dcl_reduce, get(), input, output, count, detail::number(data_type),
                               detail::number(reduce_op), root, stream.get());
    }
    Result<void> reduce_scatter(const void *input, void *output, std::size_t count, DataType data_type,
                                ReduceOperation reduce_op, const Stream &stream = Stream(),
                                Work *work = nullptr) const {
        return detail::enqueue(work, dcl_reduce_scatter, get(), input, output, count, detail::number(data_type),
                               detail::number(reduce_op), stream.get());
    }
    Result<void> all_to_all(const void *input, void *output, std::size_t count, DataType data_type,
                            const Stream &stream = Stream(), Work *work = nullptr) const {
        return detail::enqueue(work, dcl_all_to_all, get(), input, output, count, detail::number(data_type),
                               stream.get());
    }
    Result<void> gather(const void *input, void *output, std::size_t count, DataType data_type, std::int32_t root,
                        const Stream &stream = Stream(), Work *work = nullptr) const {
        return detail::enqueue(work, dcl_gather, get(), input, output, count, detail::number(data_type), root,
                               stream.get());
    }
    Result<void> scatter(const void *input, void *output, std::size_t count, DataType data_type, std::int32_t root,
                         const Stream &stream = Stream(), Work *work = nullptr) const {
        return detail::enqueue(work, dcl_scatter, get(), input, output, count, detail::number(data_type), root,
                               stream.get());
    }

    // The list forms. A list has one address for each rank. On ranks that do not use it it is
    // empty.
    Result<void> all_gather_list(const void *input, const std::vector<void *> &outputs, std::size_t count,
                                 DataType data_type, const Stream &stream = Stream(), Work *work = nullptr) const {
        if (auto fits = check_list(outputs.size()); !fits) return fits;
        return detail::enqueue(work, dcl_all_gather_list, get(), input, outputs.data(), count,
                               detail::number(data_type), stream.get());
    }
    Result<void> gather_list(const void *input, const std::vector<void *> &outputs, std::size_t count,
                             DataType data_type, std::int32_t root, const Stream &stream = Stream(),
                             Work *work = nullptr) const {
        if (auto fits = check_list(outputs.size(), root); !fits) return fits;
        return detail::enqueue(work, dcl_gather_list, get(), input, outputs.data(), count, detail::number(data_type),
                               root, stream.get());
    }
    Result<void> scatter_list(const std::vector<const void *> &inputs, void *output, std::size_t count,
                              DataType data_type, std::int32_t root, const Stream &stream = Stream(),
                              Work *work = nullptr) const {
        if (auto fits = check_list(inputs.size(), root); !fits) return fits;
        return detail::enqueue(work, dcl_scatter_list, get(), inputs.data(), output, count, detail::number(data_type),
                               root, stream.get());
    }

    // The forms with counts. Counts have one number for each rank. On ranks that do not use them
    // they are empty.
    Result<void> all_to_all_v(const void *input, const std::vector<std::size_t> &input_counts, void *output,
                              const std::vector<std::size_t> &output_counts, DataType data_type,
                              const Stream &stream = Stream(), Work *work = nullptr) const {
        if (auto fits = check_list(input_counts.size()); !fits) return fits;
        if (auto fits = check_list(output_counts.size()); !fits) return fits;
        return detail::enqueue(work, dcl_all_to_all_v, get(), input, input_counts.data(), output,
                               output_counts.data(), detail::number(data_type), stream.get());
    }
    Result<void> all_gather_v(const void *input, std::size_t input_count, void *output,
                              const std::vector<std::size_t> &output_counts, DataType data_type,
                              const Stream &stream = Stream(), Work *work = nullptr) const {
        if (auto fits = check_list(output_counts.size()); !fits) return fits;
        return detail::enqueue(work, dcl_all_gather_v, get(), input, input_count, output, output_counts.data(),
                               detail::number(data_type), stream.get());
    }
    Result<void> gather_v(const void *input, std::size_t input_count, void *output,
                          const std::vector<std::size_t> &output_counts, DataType data_type, std::int32_t root,
                          const Stream &stream = Stream(), Work *work = nullptr) const {
        if (auto fits = check_list(output_counts.size(), root); !fits) return fits;
        return detail::enqueue(work, dcl_gather_v, get(), input, input_count, output, output_counts.data(),
                               detail::number(data_type), root, stream.get());
    }
    Result<void> scatter_v(const void *input, const std::vector<std::size_t> &input_counts, void *output,
                           std::size_t output_count, DataType data_type, std::int32_t root,
                           const Stream &stream = Stream(), Work *work = nullptr) const {
        if (auto fits = check_list(input_counts.size(), root); !fits) return fits;
        return detail::enqueue(work, dcl_scatter_v, get(), input, input_counts.data(), output, output_count,
                               detail::number(data_type), root, stream.get());
    }
    Result<void> reduce_scatter_v(const void *input, const std::vector<std::size_t> &input_counts, void *output,
                                  std::size_t output_count, DataType data_type, ReduceOperation reduce_op,
                                  const Stream &stream = Stream(), Work *work = nullptr) const {
        if (auto fits = check_list(input_counts.size()); !fits) return fits;
        return detail::enqueue(work, dcl_reduce_scatter_v, get(), input, input_counts.data(), output, output_count,
                               detail::number(data_type), detail::number(reduce_op), stream.get());
    }

    // Bytes of unknown length.
    Result<Buffer> broadcast_bytes(const void *bytes, std::size_t byte_len, std::int32_t root) const {
        return detail::output<dcl_buffer_t *, Buffer>(dcl_broadcast_bytes, get(), bytes, byte_len, root);
    }
    // Element r is that of rank r.
    Result<std::vector<Buffer>> all_gather_bytes(const void *bytes, std::size_t byte_len) const {
        return received([&](dcl_buffer_t **buffers) { return dcl_all_gather_bytes(get(), bytes, byte_len, buffers); });
    }
    // Element r is that of rank r. On ranks other than the root the elements have no handles.
    Result<std::vector<Buffer>> gather_bytes(const void *bytes, std::size_t byte_len, std::int32_t root) const {
        return received(
            [&](dcl_buffer_t **buffers) { return dcl_gather_bytes(get(), bytes, byte_len, root, buffers); });
    }
    // On ranks other than the root the list is empty.
    Result<Buffer> scatter_bytes(const std::vector<Bytes> &list, std::int32_t root) const {
        std::vector<const void *> parts;
        std::vector<std::size_t> byte_lens;
        for (const Bytes &bytes : list) {
            parts.push_back(bytes.data());
            byte_lens.push_back(bytes.size());
        }
        if (auto fits = check_list(list.size(), root); !fits) return fits.error();
        return detail::output<dcl_buffer_t *, Buffer>(dcl_scatter_bytes, get(), parts.data(), byte_lens.data(), root);
    }

    // Gives every rank the tensors of the source's dictionary.
    Result<void> broadcast_tensor_dict(TensorDict &dict, const BroadcastOptions &options = BroadcastOptions(),
                                       const Stream &stream = Stream(), Work *work = nullptr) const {
        return detail::enqueue(work, dcl_broadcast_tensor_dict, get(), dict.get(), &options, stream.get());
    }

    // Messages. The caller's memory must stay valid until the call, or its work, is done.
    Result<void> send(const void *buffer, std::size_t count, DataType data_type, std::int32_t dst,
                      std::int32_t tag = 0) const {
        return detail::check(dcl_send(get(), buffer, count, detail::number(data_type), dst, tag));
    }
    Result<Received> recv(void *buffer, std::size_t count, DataType data_type, std::int32_t src,
                          std::int32_t tag = 0) const {
        Received received{};
        auto got = detail::check(
            dcl_recv(get(), buffer, count, detail::number(data_type), src, tag, &received.source, &received.count));
        if (!got) return got.error();
        return received;
    }
    Result<Work> isend(const void *buffer, std::size_t count, DataType data_type, std::int32_t dst,
                       std::int32_t tag = 0) const {
        return detail::output<dcl_work_t *, Work>(dcl_isend, get(), buffer, count, detail::number(data_type), dst, tag);
    }
    Result<Work> irecv(void *buffer, std::size_t count, DataType data_type, std::int32_t src,
                       std::int32_t tag = 0) const {
        return detail::output<dcl_work_t *, Work>(dcl_irecv, get(), buffer, count, detail::number(data_type), src, tag);
    }
    // The work is of all messages.
    Result<Work> batch_isend_irecv(const std::vector<Message> &messages) const {
        return detail::output<dcl_work_t *, Work>(dcl_batch_isend_irecv, get(), messages.data(),
                                                  static_cast<std::int32_t>(messages.size()));
    }

  private:
    // Checks that a list that this rank uses has one element for each rank. Without a root every
    // rank uses its list.
    Result<void> check_list(std::size_t length, std::optional<std::int32_t> root = std::nullopt) const {
        auto rank = get_rank();
        if (!rank) return rank.error();
        auto nb_ranks = get_world_size();
        if (!nb_ranks) return nb_ranks.error();
        if (root.value_or(rank.value()) == rank.value() && length != room(nb_ranks.value()))
            return Error(Status::kINVALID_ARGUMENT, "a list has one element for each rank");
        return detail::check(DCL_STATUS_SUCCESS);
    }

    // The buffers that `call` writes, one for each rank.
    template <typename Call>
    Result<std::vector<Buffer>> received(Call call) const {
        auto nb_ranks = get_world_size();
        if (!nb_ranks) return nb_ranks.error();
        std::vector<dcl_buffer_t *> raw(room(nb_ranks.value()));
        std::vector<Buffer> buffers;
        buffers.reserve(raw.size());
        if (auto called = detail::check(call(raw.data())); !called) return called.error();
        for (dcl_buffer_t *buffer : raw) buffers.emplace_back(buffer);
        return buffers;
    }

    static std::size_t room(std::int32_t ranks) noexcept {
        return static_cast<std::size_t>(std::max<std::int32_t>(ranks, 0));
    }
};

// -------------------------------------------------------------------------------------------------
// The environment
// -------------------------------------------------------------------------------------------------

// If an Environment is destroyed without finalize(), it does not wait for the other ranks.
class Environment : public detail::Owned<detail::Handle<dcl_environment_t>, dcl_environment_free> {
  public:
    using Owned::Owned;

    static Result<std::string> detect_launcher() {
        return detail::copy_out<std::string>(dcl_environment_detect_launcher);
    }
    static Result<Environment> initialize(const EnvironmentConfig &config = EnvironmentConfig()) {
        return detail::output<dcl_environment_t *, Environment>(dcl_environment_initialize, &config);
    }

    // Frees the handle, also if the call fails.
    Result<void> finalize() { return detail::check(dcl_environment_finalize(release())); }

    Result<EnvironmentInfo> get_info() const {
        return detail::output<EnvironmentInfo>(dcl_environment_get_info, get());
    }
    Result<Communicator> get_communicator() const {
        return detail::output<dcl_communicator_t *, Communicator>(dcl_environment_get_communicator, get());
    }

    static Result<bool> is_initialized() { return detail::output<std::int32_t, bool>(dcl_environment_is_initialized); }

    // A rank that is not in the group receives a Communicator without a handle.
    Result<Communicator> new_group(const std::string &name, const Ranks &ranks) const {
        return detail::output<dcl_communicator_t *, Communicator>(dcl_environment_new_group, get(), name.c_str(),
                                                                  ranks.data(),
                                                                  static_cast<std::int64_t>(ranks.size()));
    }
    Result<Communicator> get_group(const std::string &name) const {
        return detail::output<dcl_communicator_t *, Communicator>(dcl_environment_get_group, get(), name.c_str());
    }
};

// -------------------------------------------------------------------------------------------------
// Tensors and layers
// -------------------------------------------------------------------------------------------------

class BoundLayer;
class DistCollective;

// A view of a network's tensor.
class Tensor : public detail::Handle<dcl_tensor_t> {
  public:
    using Handle::Handle;

    Result<std::string> get_name() const { return detail::copy_out<std::string>(dcl_tensor_get_name, get()); }
    Result<void> set_name(const std::string &name) { return detail::check(dcl_tensor_set_name(get(), name.c_str())); }
    Result<DataType> get_type() const { return detail::output<dcl_data_type_t, DataType>(dcl_tensor_get_type, get()); }
};

// A view of a layer of any kind.
class Layer : public detail::Handle<dcl_layer_t> {
  public:
    using Handle::Handle;

    Result<std::string> get_kind() const { return detail::copy_out<std::string>(dcl_layer_get_kind, get()); }
    Result<std::string> get_name() const { return detail::copy_out<std::string>(dcl_layer_get_name, get()); }
    Result<void> set_name(const std::string &name) { return detail::check(dcl_layer_set_name(get(), name.c_str())); }
    Result<std::string> get_metadata() const { return detail::copy_out<std::string>(dcl_layer_get_metadata, get()); }
    Result<void> set_metadata(const std::string &metadata) {
        return detail::check(dcl_layer_set_metadata(get(), metadata.c_str()));
    }
    Result<std::int32_t> get_nb_rank() const { return detail::output<std::int32_t>(dcl_layer_get_nb_rank, get()); }
    Result<void> set_nb_rank(std::int32_t nb_rank) { return detail::check(dcl_layer_set_nb_rank(get(), nb_rank)); }

    Result<std::int32_t> get_nb_inputs() const { return detail::output<std::int32_t>(dcl_layer_get_nb_inputs, get()); }
    Result<Tensor> get_input(std::int32_t index) const {
        return detail::output<dcl_tensor_t *, Tensor>(dcl_layer_get_input, get(), index);
    }
    Result<void> set_input(std::int32_t index, Tensor tensor) {
        return detail::check(dcl_layer_set_input(get(), index, tensor.get()));
    }
    Result<std::int32_t> get_nb_outputs() const {
        return detail::output<std::int32_t>(dcl_layer_get_nb_outputs, get());
    }
    Result<Tensor> get_output(std::int32_t index) const {
        return detail::output<dcl_tensor_t *, Tensor>(dcl_layer_get_output, get(), index);
    }
};

struct InPlaceRule {
    InPlace in_place;
    std::size_t element_offset;
};

// A view of a DistCollective layer, in a network or by itself.
class DistCollectiveLayer : public Layer {
  public:
    using Layer::Layer;
    // If the layer is of another kind, the methods return Status::kINVALID_ARGUMENT.
    explicit DistCollectiveLayer(Layer layer) noexcept : Layer(layer) {}

    Result<CollectiveOperation> get_collective_operation() const {
        return detail::output<dcl_collective_operation_t, CollectiveOperation>(
            dcl_dist_collective_get_collective_operation, get());
    }
    Result<void> set_collective_operation(CollectiveOperation operation) {
        return detail::check(dcl_dist_collective_set_collective_operation(get(), detail::number(operation)));
    }
    Result<ReduceOperation> get_reduce_op() const {
        return detail::output<dcl_reduce_operation_t, ReduceOperation>(dcl_dist_collective_get_reduce_op, get());
    }
    Result<void> set_reduce_op(ReduceOperation reduce_op) {
        return detail::check(dcl_dist_collective_set_reduce_op(get(), detail::number(reduce_op)));
    }
    Result<Determinism> get_determinism() const {
        return detail::output<dcl_determinism_t, Determinism>(dcl_dist_collective_get_determinism, get());
    }
    Result<void> set_determinism(Determinism determinism) {
        return detail::check(dcl_dist_collective_set_determinism(get(), detail::number(determinism)));
    }
    Result<WireType> get_wire_type() const {
        return detail::output<dcl_wire_type_t, WireType>(dcl_dist_collective_get_wire_type, get());
    }
    Result<void> set_wire_type(WireType wire_type) {
        return detail::check(dcl_dist_collective_set_wire_type(get(), detail::number(wire_type)));
    }
    Result<std::int64_t> get_root() const { return detail::output<std::int64_t>(dcl_dist_collective_get_root, get()); }
    Result<void> set_root(std::int64_t root) { return detail::check(dcl_dist_collective_set_root(get(), root)); }

    // Empty if all ranks take part; one list for a group; one list for each group of a partition.
    Result<std::vector<Ranks>> get_groups() const {
        std::int64_t nb_groups = 0;
        std::int64_t group_size = 0;
        auto asked = detail::check(dcl_dist_collective_get_groups(get(), nullptr, 0, &nb_groups, &group_size));
        if (!asked) return asked.error();
        Ranks flat(static_cast<std::size_t>(nb_groups * group_size));
        auto copied =
            detail::check(dcl_dist_collective_get_groups(get(), flat.data(), flat.size(), &nb_groups, &group_size));
        if (!copied) return copied.error();
        // Another thread may have set fewer in between.
        flat.resize(static_cast<std::size_t>(nb_groups * group_size));
        std::vector<Ranks> groups;
        for (auto first = flat.begin(); first != flat.end(); first += group_size)
            groups.emplace_back(first, first + group_size);
        return groups;
    }
    Result<void> set_groups(const Ranks &group) {
        return detail::check(
            dcl_dist_collective_set_groups(get(), group.data(), static_cast<std::int64_t>(group.size())));
    }
    Result<void> set_partition(const std::vector<Ranks> &groups) {
        const std::size_t group_size = groups.empty() ? 0 : groups.front().size();
        Ranks flat;
        for (const Ranks &group : groups) {
            if (group.size() != group_size)
                return Error(Status::kINVALID_ARGUMENT, "groups of a partition have the same length");
            flat.insert(flat.end(), group.begin(), group.end());
        }
        return detail::check(dcl_dist_collective_set_partition(
            get(), flat.data(), static_cast<std::int64_t>(groups.size()), static_cast<std::int64_t>(group_size)));
    }

    // The layer by itself, for a plugin of another engine.
    Result<DistCollective> clone() const;
    Result<Bytes> serialize() const { return detail::copy_out<Bytes>(dcl_dist_collective_serialize, get()); }
    Result<void> check_type(DataType data_type) const {
        return detail::check(dcl_dist_collective_check_type(get(), detail::number(data_type)));
    }
    Result<Dims> get_output_dims(const Dims &input) const {
        return detail::output<Dims>(dcl_dist_collective_get_output_dims, get(), &input);
    }
    Result<InPlaceRule> get_in_place(std::int32_t group_rank, const Dims &input) const {
        dcl_in_place_t in_place = DCL_IN_PLACE_NEVER;
        std::size_t element_offset = 0;
        auto got =
            detail::check(dcl_dist_collective_get_in_place(get(), group_rank, &input, &in_place, &element_offset));
        if (!got) return got.error();
        return InPlaceRule{static_cast<InPlace>(in_place), element_offset};
    }
    Result<BoundLayer> bind(const Communicator &communicator, DataType data_type) const;
};

// A DistCollective layer that belongs to no network.
class DistCollective : public detail::Owned<DistCollectiveLayer, dcl_layer_free> {
  public:
    using Owned::Owned;

    static Result<DistCollective> create(CollectiveOperation operation,
                                         ReduceOperation reduce_op = ReduceOperation::kNONE, std::int64_t root = -1,
                                         const Ranks &groups = {}) {
        return detail::output<dcl_layer_t *, DistCollective>(dcl_dist_collective_new, detail::number(operation),
                                                             detail::number(reduce_op), root, groups.data(),
                                                             static_cast<std::int64_t>(groups.size()));
    }
    static Result<DistCollective> deserialize(const void *bytes, std::size_t byte_len) {
        return detail::output<dcl_layer_t *, DistCollective>(dcl_dist_collective_deserialize, bytes, byte_len);
    }
    static Result<DistCollective> deserialize(const Bytes &bytes) { return deserialize(bytes.data(), bytes.size()); }
};

inline Result<DistCollective> DistCollectiveLayer::clone() const {
    return detail::output<dcl_layer_t *, DistCollective>(dcl_dist_collective_clone, get());
}

// A copy of a DistCollective layer on a communicator.
class BoundLayer : public detail::Owned<detail::Handle<dcl_bound_layer_t>, dcl_bound_layer_free> {
  public:
    using Owned::Owned;

    struct Uses {
        bool reads_input;
        bool writes_output;
    };

    Result<Dims> get_output_dims(const Dims &input) const {
        return detail::output<Dims>(dcl_bound_layer_get_output_dims, get(), &input);
    }
    Result<InPlaceRule> get_in_place(const Dims &input) const {
        dcl_in_place_t in_place = DCL_IN_PLACE_NEVER;
        std::size_t element_offset = 0;
        auto got = detail::check(dcl_bound_layer_get_in_place(get(), &input, &in_place, &element_offset));
        if (!got) return got.error();
        return InPlaceRule{static_cast<InPlace>(in_place), element_offset};
    }
    Result<Uses> get_uses() const {
        std::int32_t reads_input = 0;
        std::int32_t writes_output = 0;
        if (auto got = detail::check(dcl_bound_layer_get_uses(get(), &reads_input, &writes_output)); !got)
            return got.error();
        return Uses{reads_input != 0, writes_output != 0};
    }
    // The caller's memory must stay valid until the run ends. If `work` is not NULL, *work receives
    // a handle of the run.
    Result<void> enqueue(const void *input, void *output, const Dims &dims, const Stream &stream = Stream(),
                         Work *work = nullptr) const {
        return detail::enqueue(work, dcl_bound_layer_enqueue, get(), input, output, &dims, stream.get());
    }
    Result<void> refuse_run(const std::string &reason) const {
        return detail::check(dcl_bound_layer_refuse_run(get(), reason.c_str()));
    }
};

inline Result<BoundLayer> DistCollectiveLayer::bind(const Communicator &communicator, DataType data_type) const {
    return detail::output<dcl_bound_layer_t *, BoundLayer>(dcl_dist_collective_bind, get(), communicator.get(),
                                                           detail::number(data_type));
}

// -------------------------------------------------------------------------------------------------
// Plugins
// -------------------------------------------------------------------------------------------------

using PluginTensor = dcl_plugin_tensor_t;

// A layer that the caller implements. Several threads may call its methods at once. If a method
// returns another status than kSUCCESS or throws, the call that needed it fails. The call's message
// contains the exception's what().
class Plugin {
  public:
    virtual ~Plugin() = default;

    virtual const char *get_type_name() const = 0;
    virtual const char *get_version() const { return "1"; }
    virtual std::int32_t get_nb_outputs() const { return 1; }
    virtual bool runs_on_cuda() const { return false; }

    virtual Status get_output_data_types(const DataType *inputs, std::int32_t nb_inputs, DataType *outputs,
                                         std::int32_t nb_outputs) const = 0;
    virtual Status get_output_shapes(const Dims *inputs, std::int32_t nb_inputs, Dims *outputs,
                                     std::int32_t nb_outputs) const = 0;
    virtual Status enqueue(const PluginTensor *const *inputs, std::int32_t nb_inputs,
                           const PluginTensor *const *outputs, std::int32_t nb_outputs, void *cuda_stream) const = 0;
    virtual Status serialize(Bytes &) const { return Status::kUNSUPPORTED; }
};

// Creates plugins of one type from the bytes of their serialize().
struct PluginCreator {
    std::string type_name;
    // Returns NULL if the bytes are wrong.
    std::function<std::unique_ptr<Plugin>(const Bytes &bytes)> create;
    std::string version = "1";
};

namespace detail {

// Runs the body of a callback. C code calls it, so an exception becomes a status.
template <typename Body>
dcl_status_t callback(Body body) noexcept {
#ifdef __cpp_exceptions
    try {
        return number(body());
    } catch (const Error &error) {
        const auto status = error.status() == Status::kSUCCESS ? Status::kPLUGIN : error.status();
        dcl_set_last_error(number(status), error.what());
        return number(status);
    } catch (const std::exception &exception) {
        dcl_set_last_error(DCL_STATUS_PLUGIN, exception.what());
        return DCL_STATUS_PLUGIN;
    } catch (...) {
        return DCL_STATUS_PLUGIN;
    }
#else
    return number(body());
#endif
}

// The callbacks. The user_data is the Plugin or the PluginCreator.

inline dcl_status_t plugin_data_types(void *plugin, const dcl_data_type_t *inputs, std::int32_t nb_inputs,
                                      dcl_data_type_t *outputs, std::int32_t nb_outputs) noexcept {
    return callback([=] {
        std::array<DataType, DCL_MAX_PLUGIN_TENSORS> in{};
        std::array<DataType, DCL_MAX_PLUGIN_TENSORS> out{};
        std::transform(inputs, inputs + nb_inputs, in.begin(),
                       [](dcl_data_type_t type) { return static_cast<DataType>(type); });
        out.fill(static_cast<DataType>(-1)); // an error if the plugin does not write it
        const auto status =
            static_cast<const Plugin *>(plugin)->get_output_data_types(in.data(), nb_inputs, out.data(), nb_outputs);
        std::transform(out.begin(), out.begin() + nb_outputs, outputs, number<DataType>);
        return status;
    });
}

inline dcl_status_t plugin_shapes(void *plugin, const dcl_dims_t *inputs, std::int32_t nb_inputs, dcl_dims_t *outputs,
                                  std::int32_t nb_outputs) noexcept {
    return callback([=] {
        std::array<Dims, DCL_MAX_PLUGIN_TENSORS> in;
        std::array<Dims, DCL_MAX_PLUGIN_TENSORS> out;
        std::copy_n(inputs, nb_inputs, in.begin());
        for (Dims &dims : out) dims.nb_dims = -1; // an error if the plugin does not write it
        const auto status =
            static_cast<const Plugin *>(plugin)->get_output_shapes(in.data(), nb_inputs, out.data(), nb_outputs);
        std::copy_n(out.begin(), nb_outputs, outputs);
        return status;
    });
}

inline dcl_status_t plugin_enqueue(void *plugin, const PluginTensor *const *inputs, std::int32_t nb_inputs,
                                   const PluginTensor *const *outputs, std::int32_t nb_outputs,
                                   void *cuda_stream) noexcept {
    return callback([=] {
        return static_cast<const Plugin *>(plugin)->enqueue(inputs, nb_inputs, outputs, nb_outputs, cuda_stream);
    });
}

inline dcl_status_t plugin_serialize(void *plugin, void *buffer, std::size_t capacity, std::size_t *length) noexcept {
    return callback([=] {
        Bytes bytes;
        const auto status = static_cast<const Plugin *>(plugin)->serialize(bytes);
        if (status != Status::kSUCCESS) return status;
        if (length != nullptr) *length = bytes.size();
        if (buffer == nullptr) return status;
        if (capacity < bytes.size()) return Status::kBUFFER_TOO_SMALL;
        std::copy(bytes.begin(), bytes.end(), static_cast<std::uint8_t *>(buffer));
        return status;
    });
}

inline void plugin_destroy(void *plugin) noexcept { delete static_cast<Plugin *>(plugin); }

// Fills in a structure that has the values of DCL_PLUGIN_INIT.
inline void describe(const Plugin &plugin, dcl_plugin_t &c_plugin) {
    c_plugin.type_name = plugin.get_type_name();
    c_plugin.version = plugin.get_version();
    c_plugin.user_data = const_cast<Plugin *>(&plugin);
    c_plugin.nb_outputs = plugin.get_nb_outputs();
    c_plugin.runs_on_cuda = plugin.runs_on_cuda() ? 1 : 0;
    c_plugin.get_output_data_types = plugin_data_types;
    c_plugin.get_output_shapes = plugin_shapes;
    c_plugin.enqueue = plugin_enqueue;
    c_plugin.serialize = plugin_serialize;
    c_plugin.destroy = plugin_destroy;
}

inline dcl_status_t plugin_create(void *creator, const void *bytes, std::size_t byte_len,
                                  dcl_plugin_t *c_plugin) noexcept {
    return callback([=] {
        const auto *first = static_cast<const std::uint8_t *>(bytes);
        std::unique_ptr<Plugin> plugin =
            static_cast<const PluginCreator *>(creator)->create(Bytes(first, first + byte_len));
        if (plugin == nullptr) return Status::kINVALID_PLAN;
        describe(*plugin, *c_plugin);
        plugin.release(); // the library owns it now
        return Status::kSUCCESS;
    });
}

} // namespace detail

// -------------------------------------------------------------------------------------------------
// The network
// -------------------------------------------------------------------------------------------------

// The tensors and layers that its methods return are views; the network owns them.
class Network : public detail::Owned<detail::Handle<dcl_network_t>, dcl_network_free> {
  public:
    using Owned::Owned;

    static Result<Network> create() { return detail::output<dcl_network_t *, Network>(dcl_network_new); }

    Result<void> for_rank(std::int32_t rank, std::int32_t world_size) {
        return detail::check(dcl_network_for_rank(get(), rank, world_size));
    }
    Result<Tensor> add_input(const std::string &name, DataType data_type, const Dims &dims) {
        return detail::output<dcl_tensor_t *, Tensor>(dcl_network_add_input, get(), name.c_str(),
                                                      detail::number(data_type), &dims);
    }
    Result<void> set_optimization_profile(Tensor input, const Dims &min, const Dims &opt, const Dims &max) {
        return detail::check(dcl_network_set_optimization_profile(get(), input.get(), &min, &opt, &max));
    }
    Result<std::int32_t> add_optimization_profile() {
        return detail::output<std::int32_t>(dcl_network_add_optimization_profile, get());
    }
    Result<void> set_profile_shapes(std::int32_t profile_index, Tensor input, const Dims &min, const Dims &opt,
                                    const Dims &max) {
        return detail::check(
            dcl_network_set_profile_shapes(get(), profile_index, input.get(), &min, &opt, &max));
    }
    Result<std::int32_t> get_nb_optimization_profiles() const {
        return detail::output<std::int32_t>(dcl_network_get_nb_optimization_profiles, get());
    }
    Result<DistCollectiveLayer> add_dist_collective(Tensor input, CollectiveOperation operation,
                                                    ReduceOperation reduce_op = ReduceOperation::kNONE,
                                                    std::int64_t root = -1, const Ranks &groups = {}) {
        return detail::output<dcl_layer_t *, DistCollectiveLayer>(
            dcl_network_add_dist_collective, get(), input.get(), detail::number(operation), detail::number(reduce_op),
            root, groups.data(), static_cast<std::int64_t>(groups.size()));
    }
    // A step without a value is left out.
    Result<Layer> add_shuffle(Tensor input, const std::optional<Dims> &first_transpose,
                              const std::optional<Dims> &reshape = std::nullopt,
                              const std::optional<Dims> &second_transpose = std::nullopt) {
        const auto raw = [](const std::optional<Dims> &dims) -> const dcl_dims_t * { return dims ? &*dims : nullptr; };
        return detail::output<dcl_layer_t *, Layer>(dcl_network_add_shuffle, get(), input.get(), raw(first_transpose),
                                                    raw(reshape), raw(second_transpose));
    }
    Result<Layer> add_cast(Tensor input, DataType to_type) {
        return detail::output<dcl_layer_t *, Layer>(dcl_network_add_cast, get(), input.get(),
                                                        detail::number(to_type));
    }
    Result<Layer> add_elementwise(Tensor a, Tensor b, ElementWiseOperation operation) {
        return detail::output<dcl_layer_t *, Layer>(dcl_network_add_elementwise, get(), a.get(), b.get(),
                                                               detail::number(operation));
    }
    Result<Layer> add_concatenation(const std::vector<Tensor> &inputs, std::int32_t axis) {
        std::vector<dcl_tensor_t *> tensors;
        for (const Tensor &input : inputs) tensors.push_back(input.get());
        return detail::output<dcl_layer_t *, Layer>(
            dcl_network_add_concatenation, get(), tensors.data(), static_cast<std::int32_t>(tensors.size()), axis);
    }
    Result<Layer> add_slice(Tensor input, const Dims &start, const Dims &size, const Dims &stride) {
        return detail::output<dcl_layer_t *, Layer>(dcl_network_add_slice, get(), input.get(), &start, &size,
                                                         &stride);
    }
    Result<Layer> add_identity(Tensor input) {
        return detail::output<dcl_layer_t *, Layer>(dcl_network_add_identity, get(), input.get());
    }
    Result<Layer> add_constant(DataType data_type, const Dims &dims, const void *weights,
                                       std::size_t byte_len) {
        return detail::output<dcl_layer_t *, Layer>(dcl_network_add_constant, get(), detail::number(data_type),
                                                            &dims, weights, byte_len);
    }
    // The library frees the plugin with the last object that uses it, or at once if the call fails.
    Result<Layer> add_plugin(const std::string &name, const std::vector<Tensor> &inputs,
                             std::unique_ptr<Plugin> plugin) {
        std::vector<dcl_tensor_t *> tensors;
        for (const Tensor &input : inputs) tensors.push_back(input.get());
        dcl_plugin_t c_plugin = DCL_PLUGIN_INIT;
        if (plugin != nullptr) detail::describe(*plugin, c_plugin);
        auto layer = detail::output<dcl_layer_t *, Layer>(dcl_network_add_plugin, get(), name.c_str(), tensors.data(),
                                                          static_cast<std::int32_t>(tensors.size()), &c_plugin);
        if (layer) plugin.release(); // the library owns it now
        return layer;
    }
    Result<void> mark_output(Tensor tensor, const std::string &name) {
        return detail::check(dcl_network_mark_output(get(), tensor.get(), name.c_str()));
    }

    Result<std::int32_t> get_nb_layers() const {
        return detail::output<std::int32_t>(dcl_network_get_nb_layers, get());
    }
    Result<Layer> get_layer(std::int32_t index) const {
        return detail::output<dcl_layer_t *, Layer>(dcl_network_get_layer, get(), index);
    }
    Result<std::int32_t> get_nb_inputs() const {
        return detail::output<std::int32_t>(dcl_network_get_nb_inputs, get());
    }
    Result<Tensor> get_input(std::int32_t index) const {
        return detail::output<dcl_tensor_t *, Tensor>(dcl_network_get_input, get(), index);
    }
    Result<std::int32_t> get_nb_outputs() const {
        return detail::output<std::int32_t>(dcl_network_get_nb_outputs, get());
    }
    Result<Tensor> get_output(std::int32_t index) const {
        return detail::output<dcl_tensor_t *, Tensor>(dcl_network_get_output, get(), index);
    }
};

// -------------------------------------------------------------------------------------------------
// The engine and the execution context
// -------------------------------------------------------------------------------------------------

class ExecutionContext : public detail::Owned<detail::Handle<dcl_execution_context_t>, dcl_execution_context_free> {
  public:
    using Owned::Owned;

    Result<void> set_communicator(const Communicator &communicator) {
        return detail::check(dcl_execution_context_set_communicator(get(), communicator.get()));
    }
    Result<void> set_timeout(Timeout timeout) {
        return detail::check(dcl_execution_context_set_timeout(get(), timeout.count()));
    }
    Result<void> set_profiler(dcl_profiler_callback_t callback, void *user_data) {
        return detail::check(dcl_execution_context_set_profiler(get(), callback, user_data));
    }

    Result<void> set_optimization_profile(std::int32_t profile_index) {
        return detail::check(dcl_execution_context_set_optimization_profile(get(), profile_index));
    }
    Result<std::int32_t> get_optimization_profile() const {
        return detail::output<std::int32_t>(dcl_execution_context_get_optimization_profile, get());
    }

    Result<void> set_input_shapes(const std::vector<std::pair<std::string, Dims>> &shapes) {
        std::vector<const char *> names;
        std::vector<dcl_dims_t> dims;
        for (const auto &[name, shape] : shapes) {
            names.push_back(name.c_str());
            dims.push_back(shape);
        }
        return detail::check(dcl_execution_context_set_input_shapes(get(), names.data(), dims.data(),
                                                                    static_cast<std::int32_t>(names.size())));
    }
    Result<Dims> get_tensor_shape(const std::string &name) const {
        return detail::output<Dims>(dcl_execution_context_get_tensor_shape, get(), name.c_str());
    }

    // The caller owns the memory.
    Result<void> set_tensor_address(const std::string &name, void *address, std::size_t byte_len) {
        return detail::check(dcl_execution_context_set_tensor_address(get(), name.c_str(), address, byte_len));
    }
    Result<void *> get_tensor_address(const std::string &name) const {
        return detail::output<void *>(dcl_execution_context_get_tensor_address, get(), name.c_str());
    }

    // If `work` is not NULL, *work receives a handle of the run.
    Result<void> enqueue(const Stream &stream = Stream(), Work *work = nullptr) {
        return detail::enqueue(work, dcl_execution_context_enqueue, get(), stream.get());
    }
    Result<void> refuse_run(const std::string &reason) {
        return detail::check(dcl_execution_context_refuse_run(get(), reason.c_str()));
    }
};

class Engine : public detail::Owned<detail::Handle<dcl_engine_t>, dcl_engine_free> {
  public:
    using Owned::Owned;

    static Result<Engine> build(const Network &network) {
        return detail::output<dcl_engine_t *, Engine>(dcl_engine_build, network.get());
    }
    static Result<Engine> deserialize(const void *plan, std::size_t byte_len,
                                      const std::vector<PluginCreator> &creators = {}) {
        std::vector<dcl_plugin_creator_t> c_creators;
        for (const PluginCreator &creator : creators) {
            dcl_plugin_creator_t c_creator = DCL_PLUGIN_CREATOR_INIT;
            c_creator.type_name = creator.type_name.c_str();
            c_creator.version = creator.version.c_str();
            c_creator.user_data = const_cast<PluginCreator *>(&creator);
            c_creator.create = detail::plugin_create;
            c_creators.push_back(c_creator);
        }
        return detail::output<dcl_engine_t *, Engine>(dcl_engine_deserialize, plan, byte_len, c_creators.data(),
                                                      static_cast<std::int32_t>(c_creators.size()));
    }
    static Result<Engine> deserialize(const Bytes &plan, const std::vector<PluginCreator> &creators = {}) {
        return deserialize(plan.data(), plan.size(), creators);
    }

    Result<Bytes> serialize() const { return detail::copy_out<Bytes>(dcl_engine_serialize, get()); }
    Result<std::string> inspect() const { return detail::copy_out<std::string>(dcl_engine_inspect, get()); }
    Result<std::string> get_fingerprint() const {
        return detail::copy_out<std::string>(dcl_engine_get_fingerprint, get());
    }
    Result<std::int32_t> get_nb_warnings() const {
        return detail::output<std::int32_t>(dcl_engine_get_nb_warnings, get());
    }
    Result<std::string> get_warning(std::int32_t index) const {
        return detail::copy_out<std::string>(dcl_engine_get_warning, get(), index);
    }

    Result<std::int32_t> get_nb_io_tensors() const {
        return detail::output<std::int32_t>(dcl_engine_get_nb_io_tensors, get());
    }
    Result<std::string> get_io_tensor_name(std::int32_t index) const {
        return detail::copy_out<std::string>(dcl_engine_get_io_tensor_name, get(), index);
    }
    Result<TensorIOMode> get_tensor_io_mode(const std::string &name) const {
        return detail::output<dcl_tensor_io_mode_t, TensorIOMode>(dcl_engine_get_tensor_io_mode, get(), name.c_str());
    }
    Result<DataType> get_tensor_data_type(const std::string &name) const {
        return detail::output<dcl_data_type_t, DataType>(dcl_engine_get_tensor_data_type, get(), name.c_str());
    }
    Result<Dims> get_tensor_shape(const std::string &name) const {
        return detail::output<Dims>(dcl_engine_get_tensor_shape, get(), name.c_str());
    }
    Result<std::int32_t> get_nb_optimization_profiles() const {
        return detail::output<std::int32_t>(dcl_engine_get_nb_optimization_profiles, get());
    }
    Result<Dims> get_profile_shape(const std::string &name, std::int32_t profile_index,
                                   OptProfileSelector selector) const {
        return detail::output<Dims>(dcl_engine_get_profile_shape, get(), name.c_str(), profile_index,
                                    detail::number(selector));
    }

    Result<ExecutionContext> create_execution_context(
        const ExecutionContextOptions &options = ExecutionContextOptions()) const {
        return detail::output<dcl_execution_context_t *, ExecutionContext>(dcl_engine_create_execution_context, get(),
                                                                           &options);
    }
};

} // namespace distcollective

#endif // DISTCOLLECTIVE_HPP
