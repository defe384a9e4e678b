// The header for C++ on ranks: calls fail with the library's status and message, as a Result and,
// through value(), as an exception.
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "distcollective.hpp"

using namespace distcollective;
using namespace std::chrono_literals;

namespace {

void fail(int line, const char *what) {
    std::fprintf(stderr, "%s:%d: %s\n", __FILE__, line, what);
    std::_Exit(1);
}

// An error has this status and, unless it is a success, a message.
void expect(int line, const Error &error, Status expected) {
    if (error.status() != expected || (expected != Status::kSUCCESS && error.message().empty())) {
        fail(line, (std::string(status_name(error.status())) + ": " + error.message()).c_str());
    }
}

#define FAILS(status, result) expect(__LINE__, (result).error(), Status::status)

using Body = std::function<Result<void>(Communicator &, std::int32_t)>;

// Runs `body` on two ranks, each a thread, and compares what they return or throw.
void on_two_ranks(int line, std::array<Status, 2> expected, const Body &body) {
    auto communicators = Communicator::new_in_process(2, "host", 8s).value();
    std::array<Error, 2> errors;
    const auto run = [&](std::size_t rank) {
        try {
            errors[rank] = body(communicators[rank], static_cast<std::int32_t>(rank)).error();
        } catch (const Error &error) {
            errors[rank] = error;
        }
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    for (std::size_t rank = 0; rank < 2; rank++) expect(line, errors[rank], expected[rank]);
}

DistCollective new_layer(std::int32_t nb_rank, CollectiveOperation operation,
                         ReduceOperation reduce_op = ReduceOperation::kNONE) {
    DistCollective layer = DistCollective::create(operation, reduce_op).value();
    layer.set_nb_rank(nb_rank).value();
    return layer;
}

void in_a_layer_alone() {
    FAILS(kINVALID_ARGUMENT, DistCollective::create(CollectiveOperation::kALL_GATHER, ReduceOperation::kSUM));
    const auto average = new_layer(2, CollectiveOperation::kALL_REDUCE, ReduceOperation::kAVG);
    FAILS(kINVALID_ARGUMENT, average.check_type(DataType::kBOOL));
    const auto scattered = new_layer(4, CollectiveOperation::kREDUCE_SCATTER, ReduceOperation::kSUM);
    FAILS(kINVALID_SHAPE, scattered.get_output_dims({10, 8}));
    Bytes bytes = average.serialize().value();
    bytes.back() ^= 1;
    FAILS(kINVALID_PLAN, DistCollective::deserialize(bytes));
    DistCollective freed = new_layer(2, CollectiveOperation::kALL_TO_ALL);
    const DistCollectiveLayer view = freed;
    freed.reset();
    FAILS(kINVALID_HANDLE, view.get_name());
    try {
        view.get_name().value();
        fail(__LINE__, "value() throws the error");
    } catch (const Error &error) {
        expect(__LINE__, error, Status::kINVALID_HANDLE);
    }
}

#define ON_TWO_RANKS(first, second, ...) on_two_ranks(__LINE__, {Status::first, Status::second}, __VA_ARGS__)

void on_ranks() {
    ON_TWO_RANKS(kINVALID_COMMUNICATOR, kINVALID_COMMUNICATOR,
                 [](Communicator &communicator, std::int32_t) -> Result<void> {
                     const auto layer = new_layer(4, CollectiveOperation::kALL_REDUCE, ReduceOperation::kSUM);
                     return layer.bind(communicator, DataType::kFLOAT).error();
                 });
    ON_TWO_RANKS(kDISAGREEMENT, kDISAGREEMENT, [](Communicator &communicator, std::int32_t rank) -> Result<void> {
        const auto reduce_op = rank == 0 ? ReduceOperation::kSUM : ReduceOperation::kMAX;
        const auto layer = new_layer(2, CollectiveOperation::kALL_REDUCE, reduce_op);
        return layer.bind(communicator, DataType::kFLOAT).error();
    });
    // A call that is refused before anything moves leaves the communicator usable.
    ON_TWO_RANKS(kINVALID_BUFFER, kINVALID_BUFFER, [](Communicator &communicator, std::int32_t) -> Result<void> {
        const auto layer = new_layer(2, CollectiveOperation::kALL_REDUCE, ReduceOperation::kSUM);
        BoundLayer bound = layer.bind(communicator, DataType::kFLOAT).value();
        std::array<float, 5> memory{};
        void *odd = reinterpret_cast<std::uint8_t *>(memory.data()) + 1;
        auto enqueued = bound.enqueue(odd, odd, {4});
        communicator.barrier().value();
        return enqueued;
    });
    ON_TWO_RANKS(kINVALID_BUFFER, kINVALID_BUFFER, [](Communicator &communicator, std::int32_t) -> Result<void> {
        const auto layer = new_layer(2, CollectiveOperation::kALL_TO_ALL);
        BoundLayer bound = layer.bind(communicator, DataType::kFLOAT).value();
        std::array<float, 7> memory{};
        auto enqueued = bound.enqueue(memory.data(), memory.data() + 3, {4});
        communicator.barrier().value();
        return enqueued;
    });
    ON_TWO_RANKS(kDISAGREEMENT, kDISAGREEMENT, [](Communicator &communicator, std::int32_t rank) -> Result<void> {
        std::array<float, 4> memory{};
        float *x = memory.data();
        if (rank == 0) return communicator.all_reduce(x, x, 4, DataType::kFLOAT, ReduceOperation::kSUM);
        return communicator.broadcast(x, x, 4, DataType::kFLOAT, 0);
    });
    ON_TWO_RANKS(kDEADLINE_EXCEEDED, kSUCCESS, [](Communicator &communicator, std::int32_t rank) -> Result<void> {
        if (rank == 1) return {};
        auto options = communicator.get_options().value();
        options.timeout_ms = 300;
        return communicator.with_options(options).value().barrier();
    });
    ON_TWO_RANKS(kPEER_LOST, kSUCCESS, [](Communicator &communicator, std::int32_t rank) -> Result<void> {
        if (rank == 0) return communicator.barrier();
        communicator.reset();
        return {};
    });
}

} // namespace

int main() {
    in_a_layer_alone();
    on_ranks();
    return 0;
}
