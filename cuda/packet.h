/* Loads and stores of elements: as packets of up to 16 bytes in registers, or one by one if the
 * addresses do not allow packets. */
#ifndef DCL_PACKET_H
#define DCL_PACKET_H

#include "element.h"

/* Tensors with up to this many elements are indexed in 32 bits. A division of 64 bits costs
 * several times as much. */
#ifndef DCL_NARROW_COUNT
#define DCL_NARROW_COUNT 0xffffffff
#endif

struct dcl_packet {
    unsigned words[4];
};

#ifndef __CUDACC__
/* A device stops at an access whose address is not a multiple of its size. So does the host. */
static inline void dcl_check_alignment(const char *address, unsigned bytes)
{
    if ((unsigned long long)address % bytes != 0)
        abort();
}
#endif

/* Reads 1, 2, 4, 8 or 16 bytes, a constant, from an address that is a multiple of it. */
DCL_INLINE struct dcl_packet dcl_load(const char *from, unsigned bytes)
{
    struct dcl_packet packet = {{0, 0, 0, 0}};
#ifdef __CUDACC__
    if (bytes == 16) {
        uint4 words = *(const uint4 *)from;
        packet.words[0] = words.x;
        packet.words[1] = words.y;
        packet.words[2] = words.z;
        packet.words[3] = words.w;
    } else if (bytes == 8) {
        uint2 words = *(const uint2 *)from;
        packet.words[0] = words.x;
        packet.words[1] = words.y;
    } else if (bytes == 4) {
        packet.words[0] = *(const unsigned *)from;
    } else if (bytes == 2) {
        packet.words[0] = *(const unsigned short *)from;
    } else {
        packet.words[0] = *(const unsigned char *)from;
    }
#else
    dcl_check_alignment(from, bytes);
    memcpy(packet.words, from, bytes);
#endif
    return packet;
}

DCL_INLINE void dcl_store(char *to, struct dcl_packet packet, unsigned bytes)
{
#ifdef __CUDACC__
    if (bytes == 16)
        *(uint4 *)to = make_uint4(packet.words[0], packet.words[1], packet.words[2], packet.words[3]);
    else if (bytes == 8)
        *(uint2 *)to = make_uint2(packet.words[0], packet.words[1]);
    else if (bytes == 4)
        *(unsigned *)to = packet.words[0];
    else if (bytes == 2)
        *(unsigned short *)to = (unsigned short)packet.words[0];
    else
        *(unsigned char *)to = (unsigned char)packet.words[0];
#else
    dcl_check_alignment(to, bytes);
    memcpy(to, packet.words, bytes);
#endif
}

/* The bits of element i of a packet, by the bytes of an element. */

DCL_INLINE unsigned dcl_get_1(const struct dcl_packet *packet, unsigned i)
{
    return packet->words[i / 4] >> 8 * (i % 4) & 0xff;
}

DCL_INLINE unsigned dcl_get_2(const struct dcl_packet *packet, unsigned i)
{
    return packet->words[i / 2] >> 16 * (i % 2) & 0xffff;
}

DCL_INLINE unsigned dcl_get_4(const struct dcl_packet *packet, unsigned i)
{
    return packet->words[i];
}

DCL_INLINE unsigned long long dcl_get_8(const struct dcl_packet *packet, unsigned i)
{
    return packet->words[2 * i] | (unsigned long long)packet->words[2 * i + 1] << 32;
}

/* Sets element i of a packet, which was zero. */

DCL_INLINE void dcl_put_1(struct dcl_packet *packet, unsigned i, unsigned bits)
{
    packet->words[i / 4] |= bits << 8 * (i % 4);
}

DCL_INLINE void dcl_put_2(struct dcl_packet *packet, unsigned i, unsigned bits)
{
    packet->words[i / 2] |= bits << 16 * (i % 2);
}

DCL_INLINE void dcl_put_4(struct dcl_packet *packet, unsigned i, unsigned bits)
{
    packet->words[i] = bits;
}

DCL_INLINE void dcl_put_8(struct dcl_packet *packet, unsigned i, unsigned long long bits)
{
    packet->words[2 * i] = (unsigned)bits;
    packet->words[2 * i + 1] = (unsigned)(bits >> 32);
}

/* How an array of elements is cut: `head` elements, then `packets` packets, then the rest. `loose`
 * counts the elements that are in no packet. */
struct dcl_cut {
    unsigned long long head;
    unsigned long long packets;
    unsigned long long loose;
};

/* Cuts an array so that packets of `elements` elements are aligned in the output. If they are not
 * aligned in the input too, there are no packets. */
DCL_INLINE struct dcl_cut dcl_cut(const void *input, unsigned input_bytes, const void *output, unsigned output_bytes,
                                  unsigned elements, unsigned long long count)
{
    unsigned long long from = (unsigned long long)input / input_bytes;
    unsigned long long to = (unsigned long long)output / output_bytes;
    struct dcl_cut cut;
    cut.head = (0 - to) % elements;
    cut.packets = (from - to) % elements == 0 && count > cut.head ? (count - cut.head) / elements : 0;
    cut.loose = count - cut.packets * elements;
    return cut;
}

DCL_INLINE struct dcl_cut dcl_no_packets(unsigned long long count)
{
    struct dcl_cut cut = {0, 0, count};
    return cut;
}

/* The index of loose element i in the array. */
DCL_INLINE unsigned long long dcl_loose(struct dcl_cut cut, unsigned elements, unsigned long long i)
{
    return i < cut.head ? i : i + cut.packets * elements;
}

/* How many packets a thread loads before it uses the first: enough to keep the memory busy. */
enum { DCL_DEPTH = 4 };

/* A kernel that computes output[i] from input[i]: WORK(arguments, input packet, elements) gives
 * the output packet. A packet has as many elements as 16 bytes of the wider type. A thread loads
 * several packets before it stores the first: DCL_DEPTH, or two if a packet has 16 elements,
 * which are more work. Each packet is loaded before it is stored, so the kernel works in place
 * if the sizes are equal. */
#define DCL_STREAM_KERNEL(NAME, ARGUMENTS, INPUT_BYTES, OUTPUT_BYTES, WORK) \
    DCL_KERNEL(NAME, ARGUMENTS) \
    { \
        enum { ELEMENTS = 16 / (INPUT_BYTES > OUTPUT_BYTES ? INPUT_BYTES : OUTPUT_BYTES) }; \
        const unsigned input_bytes = INPUT_BYTES * ELEMENTS, output_bytes = OUTPUT_BYTES * ELEMENTS; \
        enum { DEPTH = ELEMENTS == 16 ? 2 : DCL_DEPTH }; \
        const unsigned long long in_one_go = DEPTH * DCL_BLOCK; \
        const struct dcl_cut cut = \
            dcl_cut(arguments.input, INPUT_BYTES, arguments.output, OUTPUT_BYTES, ELEMENTS, arguments.count); \
        DCL_THREADS(thread) \
        { \
            const char *from = (const char *)arguments.input + cut.head * INPUT_BYTES; \
            char *to = (char *)arguments.output + cut.head * OUTPUT_BYTES; \
            for (unsigned long long first = DCL_BLOCK_INDEX * in_one_go + thread; first < cut.packets; \
                 first += DCL_GRID * in_one_go) { \
                struct dcl_packet packets[DEPTH]; \
                DCL_UNROLL for (unsigned i = 0; i < DEPTH; i++) \
                    if (first + i * DCL_BLOCK < cut.packets) \
                        packets[i] = dcl_load(from + (first + i * DCL_BLOCK) * input_bytes, input_bytes); \
                DCL_UNROLL for (unsigned i = 0; i < DEPTH; i++) \
                    if (first + i * DCL_BLOCK < cut.packets) \
                        dcl_store(to + (first + i * DCL_BLOCK) * output_bytes, \
                                  WORK(&arguments, &packets[i], ELEMENTS), output_bytes); \
            } \
            for (unsigned long long i = DCL_THREAD_INDEX(thread); i < cut.loose; i += DCL_THREAD_COUNT) { \
                unsigned long long element = dcl_loose(cut, ELEMENTS, i); \
                struct dcl_packet packet = \
                    dcl_load((const char *)arguments.input + element * INPUT_BYTES, INPUT_BYTES); \
                dcl_store((char *)arguments.output + element * OUTPUT_BYTES, WORK(&arguments, &packet, 1), \
                          OUTPUT_BYTES); \
            } \
        } \
    }

#endif
