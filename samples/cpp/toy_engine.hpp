// A small inference engine for plugins, with a graph, plan bytes and memory of its own. The graph
// is a chain of nodes with one input; a plan is the chain as bytes; a session runs it on one rank.
// The engine uses types and dimensions of distcollective, and passes communicators to its nodes.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
#ifndef TOY_ENGINE_HPP
#define TOY_ENGINE_HPP

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "distcollective.hpp"

namespace toy {

using distcollective::BoundLayer;
using distcollective::Bytes;
using distcollective::Communicator;
using distcollective::DataType;
using distcollective::Dims;
using distcollective::InPlace;
using distcollective::InPlaceRule;

// Fills all memory before a run, so that a check sees what a node has not written.
constexpr std::uint8_t pattern = 0xa5;

inline std::size_t byte_len(const Dims &dims, DataType type) {
    const std::int64_t elements = std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
    return static_cast<std::size_t>(elements) * distcollective::data_type_size(type);
}

// A node of the graph, with the phases of TensorRT's IPluginV3.
class Node {
  public:
    using Rule = InPlaceRule;

    virtual ~Node() = default;

    // Build time: getPluginName, supportsFormatCombination, getOutputShapes (-1 stays -1),
    // getFieldsToSerialize, clone.
    virtual std::string kind() const = 0;
    virtual void check_type(DataType) const {}
    virtual Dims get_output_dims(const Dims &input) const = 0;
    virtual Bytes serialize() const = 0;
    virtual std::unique_ptr<Node> clone() const = 0;

    // Run time: attachToContext, getAliasedInput, enqueue.
    virtual void attach(const Communicator &, DataType) {}
    virtual Rule get_in_place(const Dims &) const { return {InPlace::kNEVER, 0}; }
    virtual void enqueue(const void *input, void *output, const Dims &dims, DataType type) = 0;
};

// Transposes [rows, columns] to [columns, rows].
class Transpose : public Node {
  public:
    std::string kind() const override { return "transpose"; }
    Dims get_output_dims(const Dims &input) const override {
        if (input.nb_dims != 2) throw std::runtime_error("transpose: the input is not a matrix");
        return {input.d[1], input.d[0]};
    }
    Bytes serialize() const override { return {}; }
    std::unique_ptr<Node> clone() const override { return std::make_unique<Transpose>(); }

    void enqueue(const void *input, void *output, const Dims &dims, DataType type) override {
        const std::size_t element = distcollective::data_type_size(type);
        const auto rows = static_cast<std::size_t>(dims.d[0]);
        const auto columns = static_cast<std::size_t>(dims.d[1]);
        const auto *from = static_cast<const std::uint8_t *>(input);
        auto *to = static_cast<std::uint8_t *>(output);
        for (std::size_t row = 0; row < rows; row++) {
            for (std::size_t column = 0; column < columns; column++) {
                std::memcpy(to + (column * rows + row) * element, from + (row * columns + column) * element, element);
            }
        }
    }
};

// Creates a node of each kind from its bytes, as TensorRT's IPluginCreatorV3One does.
using Creators = std::map<std::string, std::function<std::unique_ptr<Node>(const Bytes &)>>;

// Appends to a plan.
class Writer {
  public:
    void number(std::int64_t value) {
        const auto *bytes = reinterpret_cast<const std::uint8_t *>(&value);
        plan.insert(plan.end(), bytes, bytes + sizeof value);
    }
    template <typename Container>
    void block(const Container &bytes) {
        number(static_cast<std::int64_t>(bytes.size()));
        plan.insert(plan.end(), bytes.begin(), bytes.end());
    }

    Bytes plan;
};

// Reads a plan, which is not trusted.
class Reader {
  public:
    explicit Reader(const Bytes &plan) : next_(plan.data()), left_(plan.size()) {}

    std::int64_t number() {
        std::int64_t value = 0;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }
    template <typename Container>
    Container block() {
        const auto length = static_cast<std::size_t>(number());
        const std::uint8_t *bytes = take(length);
        return Container(bytes, bytes + length);
    }

  private:
    const std::uint8_t *take(std::size_t length) {
        if (length > left_) throw std::runtime_error("the plan is cut off");
        left_ -= length;
        return std::exchange(next_, next_ + length);
    }

    const std::uint8_t *next_;
    std::size_t left_;
};

// The computation, which is the same on every rank.
struct Graph {
    DataType type = DataType::kFLOAT;
    // A dimension that each run sets is -1.
    Dims input;
    std::vector<std::unique_ptr<Node>> nodes;

    // Checks the types and shapes of every node.
    void check() const {
        Dims dims = input;
        for (const auto &node : nodes) {
            node->check_type(type);
            dims = node->get_output_dims(dims);
        }
    }

    Bytes serialize() const {
        Writer writer;
        writer.number(static_cast<std::int64_t>(type));
        writer.number(input.nb_dims);
        for (std::int64_t dim : input) writer.number(dim);
        writer.number(static_cast<std::int64_t>(nodes.size()));
        for (const auto &node : nodes) {
            writer.block(node->kind());
            writer.block(node->serialize());
        }
        return writer.plan;
    }

    static Graph deserialize(const Bytes &plan, const Creators &creators) {
        Reader reader(plan);
        Graph graph;
        graph.type = static_cast<DataType>(reader.number());
        const std::int64_t nb_dims = reader.number();
        if (nb_dims < 0 || nb_dims > DCL_MAX_DIMS)
            throw std::runtime_error("the number of dimensions of the plan's input is out of range");
        graph.input.nb_dims = static_cast<std::int32_t>(nb_dims);
        for (std::int64_t i = 0; i < nb_dims; i++) graph.input.d[i] = reader.number();
        for (std::int64_t left = reader.number(); left > 0; left--) {
            const auto kind = reader.block<std::string>();
            const auto creator = creators.find(kind);
            if (creator == creators.end()) throw std::runtime_error("no creator of nodes of kind " + kind);
            graph.nodes.push_back(creator->second(reader.block<Bytes>()));
        }
        graph.check();
        return graph;
    }
};

// A graph on one rank.
class Session {
  public:
    // Collective: all ranks make their sessions at the same time, since attach() is collective.
    Session(const Graph &graph, const Communicator &communicator) : type_(graph.type) {
        for (const auto &node : graph.nodes) {
            nodes_.push_back(node->clone());
            nodes_.back()->attach(communicator, type_);
        }
    }

    // Runs every node once, for an input of these dimensions. The nodes stay attached. With
    // `in_place` the input and output of a node share memory if the node's rule allows it.
    void run(const Dims &dims, const Bytes &input, bool in_place) {
        plan_memory(dims, in_place);
        std::memcpy(address(0), input.data(), input.size());
        for (std::size_t i = 0; i < nodes_.size(); i++)
            nodes_[i]->enqueue(address(i), address(i + 1), values_[i].dims, type_);
    }

    // A node's in-place rule for the dimensions of the last run.
    Node::Rule in_place(std::size_t node) const { return nodes_[node]->get_in_place(values_[node].dims); }

    // The values after a run. Value 0 is the graph's input, value i + 1 is the output of node i.
    const Dims &dims(std::size_t value) const { return values_[value].dims; }
    Bytes bytes(std::size_t value) const {
        const std::uint8_t *first = address(value);
        return Bytes(first, first + byte_len(values_[value].dims, type_));
    }

  private:
    // A value's place: an offset in a block of memory, and whether no other value was there before.
    struct Value {
        Dims dims;
        std::size_t block;
        std::size_t offset;
        bool alone;
    };

    void plan_memory(const Dims &input, bool in_place) {
        std::vector<std::size_t> lengths;
        values_.clear();
        values_.reserve(nodes_.size() + 1);
        const auto add_apart = [&](const Dims &dims) {
            values_.push_back({dims, lengths.size(), 0, true});
            lengths.push_back(byte_len(dims, type_));
        };
        add_apart(input);
        for (const auto &node : nodes_) {
            Value &from = values_.back();
            const Dims dims = node->get_output_dims(from.dims);
            const Node::Rule rule = in_place ? node->get_in_place(from.dims) : Node::Rule{InPlace::kNEVER, 0};
            const std::size_t offset = rule.element_offset * distcollective::data_type_size(type_);
            if (rule.in_place == InPlace::kSAME_ADDRESS || rule.in_place == InPlace::kOUTPUT_AT) {
                values_.push_back({dims, from.block, from.offset + offset, false});
            } else if (rule.in_place == InPlace::kINPUT_AT && from.alone) {
                // The input's block grows to the output's length.
                lengths[from.block] = byte_len(dims, type_);
                from.offset = offset;
                values_.push_back({dims, from.block, 0, false});
            } else {
                add_apart(dims);
            }
        }
        blocks_.clear();
        for (std::size_t length : lengths) blocks_.emplace_back(length, pattern);
    }

    std::uint8_t *address(std::size_t value) { return blocks_[values_[value].block].data() + values_[value].offset; }
    const std::uint8_t *address(std::size_t value) const {
        return blocks_[values_[value].block].data() + values_[value].offset;
    }

    DataType type_;
    std::vector<std::unique_ptr<Node>> nodes_;
    std::vector<Value> values_;
    std::vector<Bytes> blocks_;
};

} // namespace toy

#endif // TOY_ENGINE_HPP
