// Asynchronous calls, lists, bytes, messages, dictionaries, groups and random numbers through
// distcollective.hpp.
#include <distcollective.hpp>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace dcl = distcollective;

namespace {

void check(bool condition, int line) {
    if (condition) return;
    std::fprintf(stderr, "eager.cpp:%d: a check failed\n", line);
    std::_Exit(1);
}

#define CHECK(condition) check((condition), __LINE__)

constexpr auto kTIMEOUT = dcl::Timeout(8000);

void run(dcl::Communicator communicator) {
    const auto type = dcl::DataType::kFLOAT;
    const std::int32_t rank = communicator.get_rank().value();
    const bool is_root = rank == 1;
    float x[1] = {1};
    float list[2][1] = {{0}, {0}};

    CHECK(!communicator.session_value().value().empty());

    dcl::Stream stream = communicator.get_stream().value();
    dcl::Work work;
    communicator.all_reduce(x, x, 1, type, dcl::ReduceOperation::kSUM, stream, &work).value();
    work.wait().value();
    CHECK(x[0] == 2);
    communicator.enqueue_barrier(stream, &work).value();
    communicator.monitored_barrier(kTIMEOUT).value();

    x[0] = static_cast<float>(rank);
    const std::vector<void *> outputs = {list[0], list[1]};
    const std::vector<const void *> inputs = {list[0], list[1]};
    communicator.all_gather_list(x, outputs, 1, type).value();
    CHECK(list[0][0] == 0 && list[1][0] == 1);
    list[0][0] = list[1][0] = -7;
    communicator.gather_list(x, is_root ? outputs : std::vector<void *>(), 1, type, 1).value();
    CHECK(list[1][0] == (is_root ? 1 : -7));
    x[0] = -7;
    communicator.scatter_list(is_root ? inputs : std::vector<const void *>(), x, 1, type, 1).value();
    CHECK(x[0] == static_cast<float>(rank));
    auto short_list = communicator.all_gather_list(x, {list[0]}, 1, type);
    CHECK(!short_list && short_list.error().status() == dcl::Status::kINVALID_ARGUMENT);

    const std::vector<std::size_t> counts = {1, 2}, none;
    const std::size_t own_count = counts[static_cast<std::size_t>(rank)];
    float given[3] = {1, 2, 3}, blocks[4], block[2];
    communicator.all_to_all_v(given, counts, blocks, {own_count, own_count}, type).value();
    CHECK(blocks[0] == (rank == 0 ? 1.0f : 2.0f));
    communicator.all_gather_v(given, own_count, blocks, counts, type).value();
    CHECK(blocks[0] == 1 && blocks[1] == 1 && blocks[2] == 2);
    communicator.gather_v(given, own_count, blocks, is_root ? counts : none, type, 1).value();
    communicator.scatter_v(blocks, is_root ? counts : none, block, own_count, type, 1).value();
    CHECK(block[0] == 1 && (rank == 0 || block[1] == 2));
    communicator.reduce_scatter_v(given, counts, block, own_count, type, dcl::ReduceOperation::kSUM).value();
    CHECK(block[0] == (rank == 0 ? 2 : 4));
    auto short_counts = communicator.all_gather_v(given, 1, blocks, {1}, type);
    CHECK(!short_counts && short_counts.error().status() == dcl::Status::kINVALID_ARGUMENT);

    CHECK(communicator.broadcast_bytes("abc", 3, 0).value().get_byte_len().value() == 3);
    const auto own_len = static_cast<std::size_t>(rank);
    const auto all = communicator.all_gather_bytes("x", own_len).value();
    CHECK(all[0].get_byte_len().value() == 0 && all[1].get_byte_len().value() == 1);
    const auto gathered = communicator.gather_bytes("x", own_len, 1).value();
    CHECK(static_cast<bool>(gathered[1]) == is_root);
    const std::vector<dcl::Bytes> parts = {{1}, {2, 3}};
    const auto part = communicator.scatter_bytes(is_root ? parts : std::vector<dcl::Bytes>(), 1).value();
    CHECK(part.get_byte_len().value() == own_len + 1);

    const std::int32_t other = 1 - rank;
    float got[2] = {-7, -7};
    communicator.send(x, 1, type, other, 3).value();
    auto received = communicator.recv(got, 2, type, dcl::any_source, 3).value();
    CHECK(received.source == other && received.count == 1 && got[0] == static_cast<float>(other) && got[1] == -7);
    auto sending = communicator.isend(x, 1, type, other).value();
    auto receiving = communicator.irecv(got, 2, type, other).value();
    CHECK(!receiving.get_received());
    receiving.wait().value();
    sending.wait().value();
    CHECK(receiving.get_received()->count == 1);
    auto both = communicator.batch_isend_irecv(
        {dcl::Message::send(x, 1, type, other), dcl::Message::recv(got, 1, type, other)});
    both->wait().value();
    CHECK(!both->get_received(0) && both->get_received(1)->source == other);

    auto dict = dcl::TensorDict::create().value();
    if (is_root) {
        dict.insert("w", {type, {2}, got}).value();
        dcl::DictTensor opaque;
        opaque.data_type = DCL_OPAQUE_TYPE;
        opaque.type_name = "F64";
        opaque.bit_len = 64;
        dict.insert("double", opaque).value();
        dcl::DictTensor rows(type, {2, 1}, got);
        const std::int64_t strides[2] = {1, 2};
        rows.strides = strides;
        dict.insert("rows", rows).value();
        dict.set_metadata("format", "pt").value();
    }
    dcl::BroadcastOptions options;
    options.src = 1;
    communicator.broadcast_tensor_dict(dict, options).value();
    communicator.broadcast_tensor_dict(dict, options, stream, &work).value();
    work.wait().value();
    CHECK(dict.get_nb_tensors().value() == 3 && dict.get_name(1).value() == "double");
    const dcl::DictTensor w = dict.get_tensor("w").value();
    CHECK(w.data_type == DCL_DATA_TYPE_FLOAT && w.dims == dcl::Dims({2}) && w.byte_len == sizeof got);
    CHECK(w.device == dcl::host_memory && w.address != nullptr && w.is_read_only == 0);
    CHECK(dict.get_tensor("double")->type_name == std::string("F64"));
    dict.write("w", 0, got, sizeof got).value();
    dict.read("w", 0, got, sizeof got).value();
    CHECK(dict.get_nb_metadata().value() == 1 && dict.get_metadata_key(0).value() == "format");
    CHECK(dict.get_metadata("format").value() == "pt");
    dict.remove_metadata("format").value();
    dict.remove("w").value();
    const std::string path = "/tmp/dcl_eager_" + std::to_string(getpid()) + "_" + std::to_string(rank);
    dict.save(path).value();
    CHECK(dcl::TensorDict::load(path).value().get_nb_tensors().value() == 2);
    CHECK(dcl::TensorDict::map(path).value().get_nb_tensors().value() == 2);
    CHECK(unlink(path.c_str()) == 0);

    communicator.begin_request(7).value();
    auto ended = is_root ? communicator.end_request("no image") : communicator.end_request();
    CHECK(is_root ? static_cast<bool>(ended) : ended.error().status() == dcl::Status::kRUN_REFUSED);
    communicator.begin_request(8).value();
    communicator.end_request().value();

    const auto group = communicator.new_group({1, 0}).value();
    CHECK(group.get_global_ranks().value() == dcl::Ranks({1, 0}));
    CHECK(group.get_global_rank(0).value() == 1 && group.get_group_rank(0).value() == 1);
    const auto outside = group.get_group_rank(7);
    CHECK(!outside && outside.error().status() == dcl::Status::kNOT_A_MEMBER);
}

void environment_of_one_rank() {
    CHECK(!dcl::Environment::is_initialized().value());
    dcl::EnvironmentConfig config;
    config.rank = 0;
    config.world_size = 1;
    config.host = "localhost";
    config.port = 1024 + getpid() % 60000;
    config.backend = "host";
    dcl::Environment environment = dcl::Environment::initialize(config).value();
    CHECK(environment.new_group("tp", {0}).value().get_world_size().value() == 1);
    CHECK(environment.get_group("tp").value().get_rank().value() == 0);
    const auto info = environment.get_info().value();
    CHECK(info.rank == 0 && info.world_size == 1 && info.rank_source != nullptr);
    environment.finalize().value();
}

} // namespace

int main() {
    auto ranks = dcl::Communicator::new_in_process(2, "host", kTIMEOUT).value();
    std::thread first(run, std::move(ranks[0]));
    std::thread second(run, std::move(ranks[1]));
    first.join();
    second.join();
    environment_of_one_rank();
    return 0;
}
