// Shuffle, ElementWise, Concatenation, Slice and Identity layers.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "distcollective.hpp"

using namespace distcollective;

namespace {

void check(int line, bool condition) {
    if (!condition) {
        std::fprintf(stderr, "%s:%d\n", __FILE__, line);
        std::_Exit(1);
    }
}

} // namespace

#define CHECK(condition) check(__LINE__, (condition))

int main() {
    auto network = Network::create().value();
    auto x = network.add_input("x", DataType::kINT32, Dims{2, 2}).value();
    auto product = network.add_elementwise(x, x, ElementWiseOperation::kPROD).value();
    auto joined = network.add_concatenation({x, product.get_output(0).value()}, 1).value();
    auto turned = network.add_shuffle(joined.get_output(0).value(), Dims{1, 0}, std::nullopt, Dims{1, 0}).value();
    auto part = network.add_slice(turned.get_output(0).value(), Dims{1, 3}, Dims{2, 2}, Dims{-1, -2}).value();
    auto copy = network.add_identity(part.get_output(0).value()).value();
    CHECK(copy.get_kind().value() == "identity");
    network.mark_output(copy.get_output(0).value(), "y").value();
    CHECK(!network.add_concatenation({}, 0));

    std::array<std::int32_t, 4> given{1, 2, 3, 4}, got{};
    auto context = Engine::build(network).value().create_execution_context().value();
    context.set_tensor_address("x", given.data(), sizeof given).value();
    context.set_tensor_address("y", got.data(), sizeof got).value();
    context.enqueue().value();
    CHECK(got == (std::array<std::int32_t, 4>{16, 4, 4, 2}));
    return 0;
}
