// The DistCollective layer by itself, as a plugin of a small engine with a graph of its own
// (toy_engine.hpp).
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     input [3, batch] -> Transpose -> [batch, 3] -> DistCollectivePlugin -> "collective"
//                      -> Transpose -> "output"
//
// The graph is made once, written as a plan and read back on every rank. A rank binds the plugin to
// its communicator once, and then runs two batch sizes, with the plugin's buffers apart and in
// place. All memory is first filled with a pattern: on a rank where the operation does not write
// (REDUCE and GATHER, except on the root), "collective" must keep it, and so must "output".
//
//     sample_plugin [--ranks N] [--op NAME|all] [--dtype TYPE] [--root K]
//     distcollective launch -n 4 -- sample_plugin

#include <strings.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../c/options.h"
#include "../c/values.h"
#include "distcollective.hpp"
#include "toy_engine.hpp"

using namespace distcollective;
using namespace std::chrono_literals;

namespace {

// The toy engine computes in host memory.
const char *const backend = "host";

constexpr std::int64_t rows = 3;

// ---- The plugin ----

class DistCollectivePlugin : public toy::Node {
  public:
    explicit DistCollectivePlugin(DistCollective layer) : layer_(std::move(layer)) {}

    static std::unique_ptr<Node> deserialize(const Bytes &bytes) {
        return std::make_unique<DistCollectivePlugin>(DistCollective::deserialize(bytes).value());
    }

    std::string kind() const override { return "dist_collective"; }
    void check_type(DataType type) const override { layer_.check_type(type).value(); }
    Dims get_output_dims(const Dims &input) const override { return layer_.get_output_dims(input).value(); }
    Bytes serialize() const override { return layer_.serialize().value(); }
    std::unique_ptr<Node> clone() const override {
        return std::make_unique<DistCollectivePlugin>(layer_.clone().value());
    }

    void attach(const Communicator &communicator, DataType type) override {
        bound_ = layer_.bind(communicator, type).value();
    }
    Rule get_in_place(const Dims &input) const override {
        // On a rank that does not read the input or does not write the output, the engine must keep
        // both apart: the session checks the bytes of both.
        const BoundLayer::Uses uses = bound_.get_uses().value();
        if (!uses.reads_input || !uses.writes_output) return {InPlace::kUNUSED, 0};
        return bound_.get_in_place(input).value();
    }
    void enqueue(const void *input, void *output, const Dims &dims, DataType) override {
        bound_.enqueue(input, output, dims).value();
    }

  private:
    DistCollective layer_;
    BoundLayer bound_;
};

const toy::Creators creators = {
    {"transpose", [](const Bytes &) { return std::make_unique<toy::Transpose>(); }},
    {"dist_collective", DistCollectivePlugin::deserialize},
};

// ---- What the operations mean ----

constexpr std::array operations = {
    CollectiveOperation::kALL_REDUCE,     CollectiveOperation::kALL_GATHER, CollectiveOperation::kBROADCAST,
    CollectiveOperation::kREDUCE,         CollectiveOperation::kREDUCE_SCATTER, CollectiveOperation::kALL_TO_ALL,
    CollectiveOperation::kGATHER,         CollectiveOperation::kSCATTER,
};

constexpr std::array types = {DataType::kFLOAT, DataType::kBF16, DataType::kINT64, DataType::kINT32,
                              DataType::kINT8,  DataType::kUINT8, DataType::kBOOL};

struct Arguments {
    std::vector<CollectiveOperation> operations{::operations.begin(), ::operations.end()};
    std::int32_t ranks = 2;
    std::int32_t root = 0;
    DataType type = DataType::kFLOAT;
};

using Values = std::vector<std::int64_t>;

bool reduces(CollectiveOperation operation) { return ::reduces(static_cast<dcl_collective_operation_t>(operation)); }

bool has_root(CollectiveOperation operation) { return ::has_root(static_cast<dcl_collective_operation_t>(operation)); }

// A rank's input: small whole numbers, which every type holds.
Values input_values(std::int32_t rank, std::int64_t batch) {
    Values values;
    for (std::int64_t i = 0; i < rows * batch; i++) values.push_back((i + 2 * rank) % 3);
    return values;
}

Values transpose(const Values &values, std::int64_t from_rows) {
    const std::int64_t columns = static_cast<std::int64_t>(values.size()) / from_rows;
    Values transposed;
    for (std::int64_t column = 0; column < columns; column++) {
        for (std::int64_t row = 0; row < from_rows; row++) {
            transposed.push_back(values[static_cast<std::size_t>(row * columns + column)]);
        }
    }
    return transposed;
}

Values concatenation(const std::vector<Values> &parts) {
    Values all;
    for (const Values &part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

Values sum(const std::vector<Values> &parts, DataType type) {
    if (parts.size() == 1) return parts[0];
    Values sums(parts[0].size(), 0);
    for (const Values &part : parts) {
        for (std::size_t i = 0; i < part.size(); i++) sums[i] += part[i];
    }
    // The sum of bool is or.
    if (type == DataType::kBOOL) {
        for (std::int64_t &value : sums) value = value != 0 ? 1 : 0;
    }
    return sums;
}

Values block(const Values &values, std::int32_t index, std::int32_t blocks) {
    const auto length = static_cast<std::ptrdiff_t>(values.size()) / blocks;
    return Values(values.begin() + index * length, values.begin() + (index + 1) * length);
}

// The output of the collective on a rank; nothing if it does not write there.
std::optional<Values> expected_values(const Arguments &arguments, CollectiveOperation operation, std::int32_t rank,
                                      std::int64_t batch) {
    std::vector<Values> inputs;
    std::vector<Values> blocks;
    for (std::int32_t r = 0; r < arguments.ranks; r++) {
        inputs.push_back(transpose(input_values(r, batch), rows));
        blocks.push_back(block(inputs.back(), rank, arguments.ranks));
    }
    const Values &root_input = inputs[static_cast<std::size_t>(arguments.root)];
    const bool is_root = rank == arguments.root;
    switch (operation) {
    case CollectiveOperation::kALL_REDUCE: return sum(inputs, arguments.type);
    case CollectiveOperation::kALL_GATHER: return concatenation(inputs);
    case CollectiveOperation::kBROADCAST: return root_input;
    case CollectiveOperation::kREDUCE: return is_root ? std::optional(sum(inputs, arguments.type)) : std::nullopt;
    case CollectiveOperation::kREDUCE_SCATTER: return sum(blocks, arguments.type);
    case CollectiveOperation::kALL_TO_ALL: return concatenation(blocks);
    case CollectiveOperation::kGATHER: return is_root ? std::optional(concatenation(inputs)) : std::nullopt;
    case CollectiveOperation::kSCATTER: return block(root_input, rank, arguments.ranks);
    }
    return std::nullopt;
}

template <typename T>
void append(Bytes &bytes, T value) {
    const auto *first = reinterpret_cast<const std::uint8_t *>(&value);
    bytes.insert(bytes.end(), first, first + sizeof value);
}

// Small whole numbers as elements of a type.
Bytes encode(DataType type, const Values &values) {
    Bytes bytes;
    for (std::int64_t value : values) {
        const auto as_float = static_cast<float>(value);
        switch (type) {
        case DataType::kFLOAT: append(bytes, as_float); break;
        case DataType::kBF16: {
            // The upper half of a float32; the lower half is zero for these values.
            std::uint32_t bits = 0;
            std::memcpy(&bits, &as_float, sizeof bits);
            append(bytes, static_cast<std::uint16_t>(bits >> 16));
            break;
        }
        case DataType::kINT64: append(bytes, value); break;
        case DataType::kINT32: append(bytes, static_cast<std::int32_t>(value)); break;
        default: append(bytes, static_cast<std::uint8_t>(value)); break;
        }
    }
    return bytes;
}

// ---- One rank ----

// Describes the graph and writes its plan. It is the same on every rank.
Bytes build(const Arguments &arguments, CollectiveOperation operation) {
    const ReduceOperation reduce_op = reduces(operation) ? ReduceOperation::kSUM : ReduceOperation::kNONE;
    const std::int32_t root = has_root(operation) ? arguments.root : -1;
    DistCollective layer = DistCollective::create(operation, reduce_op, root).value();
    layer.set_name(collective_operation_name(operation)).value();
    layer.set_nb_rank(arguments.ranks).value();

    toy::Graph graph;
    graph.type = arguments.type;
    graph.input = {rows, -1};
    graph.nodes.push_back(std::make_unique<toy::Transpose>());
    graph.nodes.push_back(std::make_unique<DistCollectivePlugin>(std::move(layer)));
    graph.nodes.push_back(std::make_unique<toy::Transpose>());
    graph.check();
    return graph.serialize();
}

// The result of one rank.
struct Outcome {
    std::string error;
    Dims input;
    Dims output;
    std::string in_place;
    bool written = true;
    std::chrono::duration<double, std::micro> time{};
};

std::string text(const Dims &dims) {
    std::string text;
    for (std::int64_t dim : dims) text += (text.empty() ? "" : ", ") + std::to_string(dim);
    return "[" + text + "]";
}

std::string text(const InPlaceRule &rule) {
    switch (rule.in_place) {
    case InPlace::kNEVER: return "never";
    case InPlace::kSAME_ADDRESS: return "same address";
    case InPlace::kINPUT_AT: return "input at " + std::to_string(rule.element_offset);
    case InPlace::kOUTPUT_AT: return "output at " + std::to_string(rule.element_offset);
    case InPlace::kUNUSED: return "unused";
    }
    return "?";
}

std::string text(const Bytes &bytes) {
    const char *const digits = "0123456789abcdef";
    std::string text;
    for (std::uint8_t byte : bytes) text += {' ', digits[byte >> 4], digits[byte & 15]};
    return text;
}

void check(const std::string &name, const Bytes &got, const Bytes &expected) {
    if (got != expected) throw std::runtime_error("\"" + name + "\" is wrong:" + text(got) + ", not" + text(expected));
}

// Reads the plan, attaches it to the communicator, and runs and checks two batch sizes.
Outcome run_rank(const Arguments &arguments, CollectiveOperation operation, const Bytes &plan,
                 const Communicator &communicator) {
    const std::int32_t rank = communicator.get_rank().value();
    const toy::Graph graph = toy::Graph::deserialize(plan, creators);
    toy::Session session(graph, communicator);
    Outcome outcome;
    for (const std::int64_t batch : {2 * arguments.ranks, 3 * arguments.ranks}) {
        for (const bool in_place : {false, true}) {
            const Bytes input = encode(arguments.type, input_values(rank, batch));
            const auto start = std::chrono::steady_clock::now();
            session.run({rows, batch}, input, in_place);
            outcome.time = std::max(outcome.time, decltype(outcome.time)(std::chrono::steady_clock::now() - start));

            const Bytes collective = session.bytes(2);
            const Bytes output = session.bytes(3);
            if (const auto expected = expected_values(arguments, operation, rank, batch)) {
                check("collective", collective, encode(arguments.type, *expected));
                check("output", output, encode(arguments.type, transpose(*expected, session.dims(2).d[0])));
            } else {
                check("collective", collective, Bytes(collective.size(), toy::pattern));
                check("output", output, Bytes(output.size(), toy::pattern));
                outcome.written = false;
            }
        }
    }
    outcome.input = session.dims(1);
    outcome.output = session.dims(2);
    outcome.in_place = text(session.in_place(1));
    return outcome;
}

// Calls run_rank, and keeps the text of an exception in the outcome.
Outcome try_rank(const Arguments &arguments, CollectiveOperation operation, const Bytes &plan,
                 const Communicator &communicator) {
    Outcome outcome;
    try {
        outcome = run_rank(arguments, operation, plan, communicator);
    } catch (const std::exception &error) {
        outcome.error = error.what();
    }
    return outcome;
}

// A line of the summary.
struct Row {
    explicit Row(CollectiveOperation operation) {
        for (const char *c = collective_operation_name(operation); *c != '\0'; c++)
            name += static_cast<char>(std::toupper(*c));
    }

    // Prints the result of one rank, and keeps it for the summary.
    void tell(std::int32_t rank, const Outcome &outcome) {
        if (!outcome.error.empty()) {
            std::printf("Rank %d - %s FAILED: %s\n", rank, name.c_str(), outcome.error.c_str());
            passed = false;
            return;
        }
        std::printf("Rank %d - %s PASSED\n", rank, name.c_str());
        std::printf("Rank %d - %s test completed successfully!\n", rank, name.c_str());
        // Show a rank that uses both buffers, if there is one.
        if (shown.input.nb_dims == 0 || shown.in_place == "unused") shown = outcome;
        slowest = std::max(slowest, outcome.time.count());
        all_written = all_written && outcome.written;
    }

    std::string name;
    Outcome shown;
    double slowest = 0;
    bool all_written = true;
    bool passed = true;
};

void print_summary(const Arguments &arguments, const char *ranks_are, const std::vector<Row> &summary) {
    std::printf("\nranks: %d %s; type: %s; backend: %s\n", arguments.ranks, ranks_are, data_type_name(arguments.type),
                backend);
    std::printf("%-15s %-10s %-10s %-14s %12s  result\n", "operation", "input", "output", "in place", "slowest run");
    for (const Row &row : summary) {
        const char *result = !row.passed ? "FAILED" : row.all_written ? "PASSED" : "PASSED, untouched off the root";
        std::printf("%-15s %-10s %-10s %-14s %9.1f us  %s\n", row.name.c_str(), text(row.shown.input).c_str(),
                    text(row.shown.output).c_str(), row.shown.in_place.c_str(), row.slowest, result);
    }
}

// Runs every operation on ranks that are threads of this process.
bool in_threads(const Arguments &arguments) {
    std::vector<Row> summary;
    bool passed = true;
    for (CollectiveOperation operation : arguments.operations) {
        const Bytes plan = build(arguments, operation);
        auto communicators = Communicator::new_in_process(arguments.ranks, backend, 30s).value();
        std::vector<Outcome> outcomes(communicators.size());
        std::vector<std::thread> threads;
        for (std::size_t rank = 0; rank < communicators.size(); rank++) {
            threads.emplace_back([&, rank] {
                // A rank that fails frees its communicator, so that the others do not wait for it.
                const Communicator communicator = std::move(communicators[rank]);
                outcomes[rank] = try_rank(arguments, operation, plan, communicator);
            });
        }
        for (std::thread &thread : threads) thread.join();
        Row row(operation);
        for (std::size_t rank = 0; rank < outcomes.size(); rank++)
            row.tell(static_cast<std::int32_t>(rank), outcomes[rank]);
        passed = passed && row.passed;
        summary.push_back(std::move(row));
    }
    print_summary(arguments, arguments.ranks == 1 ? "thread" : "threads", summary);
    return passed;
}

// Runs every operation on this process, one rank of a launcher's job.
bool as_one_rank(Arguments arguments) {
    EnvironmentConfig config;
    config.backend = backend;
    config.timeout_ms = Timeout(60s).count();
    Environment environment = Environment::initialize(config).value();
    const Communicator communicator = environment.get_communicator().value();
    const std::int32_t rank = communicator.get_rank().value();
    arguments.ranks = communicator.get_world_size().value();
    std::vector<Row> summary;
    bool passed = true;
    for (CollectiveOperation operation : arguments.operations) {
        summary.emplace_back(operation);
        summary.back().tell(rank, try_rank(arguments, operation, build(arguments, operation), communicator));
        passed = passed && summary.back().passed;
    }
    communicator.barrier().value();
    if (rank == 0) print_summary(arguments, "processes", summary);
    environment.finalize().value();
    return passed;
}

// ---- The command line ----

[[noreturn]] void refuse(const char *option, const char *value) {
    std::fprintf(stderr, "error: %s: \"%s\" is none of its values\n", option, value);
    std::exit(WRONG_USAGE);
}

// Finds the value of a list whose name in the library this is.
template <typename List, typename Name>
auto parse_name(const char *option, const char *text, const List &list, Name name_of) {
    for (const auto value : list) {
        if (strcasecmp(text, name_of(value)) == 0) return value;
    }
    refuse(option, text);
}

Arguments parse(int count, char **words) {
    options given = {2, "all", nullptr, "float32", "0"};
    parse_options(count, words, &given);
    Arguments arguments;
    if (strcasecmp(given.op, "all") != 0) {
        arguments.operations = {parse_name("--op", given.op, operations, collective_operation_name)};
    }
    arguments.ranks = given.nb_ranks;
    arguments.type = parse_name("--dtype", given.dtype, types, data_type_name);
    arguments.root = parse_number(given.root, 0, MAX_RANKS - 1);
    if (arguments.root < 0) refuse("--root", given.root);
    return arguments;
}

} // namespace

int main(int count, char **words) {
    try {
        const Arguments arguments = parse(count, words);
        return (is_launched() ? as_one_rank(arguments) : in_threads(arguments)) ? PASSED : FAILED;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return FAILED;
    }
}
