/* Transposes and slices, by the bytes of an element. */
#ifndef DCL_TRANSPOSE_H
#define DCL_TRANSPOSE_H

#include "arguments.h"
#include "packet.h"

/* The positions in the input of the output's elements first, first + DCL_BLOCK and so on. A
 * division costs much more than a load, and one of 64 bits several times as much as one of 32
 * bits. So the numbers are as narrow as the tensor allows, and all elements are divided by a
 * dimension together, which lets the compiler share work. */
#define DCL_TRANSPOSE_SOURCES(NAME, NUMBER) \
    DCL_INLINE void NAME(const struct dcl_transpose_arguments *arguments, NUMBER first, long long *sources) \
    { \
        NUMBER rest[DCL_DEPTH]; \
        DCL_UNROLL for (unsigned i = 0; i < DCL_DEPTH; i++) { \
            rest[i] = first + i * DCL_BLOCK; \
            sources[i] = 0; \
        } \
        DCL_NO_UNROLL for (unsigned dim = (unsigned)arguments->dim_count; dim-- > 0;) { \
            const NUMBER size = (NUMBER)arguments->dims[dim]; \
            DCL_UNROLL for (unsigned i = 0; i < DCL_DEPTH; i++) { \
                const NUMBER quotient = rest[i] / size; \
                sources[i] += (long long)(rest[i] - quotient * size) * arguments->strides[dim]; \
                rest[i] = quotient; \
            } \
        } \
    }

DCL_TRANSPOSE_SOURCES(dcl_transpose_sources_narrow, unsigned)
DCL_TRANSPOSE_SOURCES(dcl_transpose_sources_wide, unsigned long long)

/* Neighbouring threads write neighbouring elements of the output. */
#define DCL_TRANSPOSE(NAME, BYTES) \
    DCL_KERNEL(NAME, dcl_transpose_arguments) \
    { \
        const unsigned long long in_one_go = DCL_DEPTH * DCL_BLOCK; \
        DCL_THREADS(thread) \
        { \
            for (unsigned long long first = DCL_BLOCK_INDEX * in_one_go + thread; first < arguments.count; \
                 first += DCL_GRID * in_one_go) { \
                long long sources[DCL_DEPTH]; \
                struct dcl_packet packets[DCL_DEPTH]; \
                if (arguments.count <= DCL_NARROW_COUNT) \
                    dcl_transpose_sources_narrow(&arguments, (unsigned)first, sources); \
                else \
                    dcl_transpose_sources_wide(&arguments, first, sources); \
                DCL_UNROLL for (unsigned i = 0; i < DCL_DEPTH; i++) \
                    if (first + i * DCL_BLOCK < arguments.count) \
                        packets[i] = dcl_load((const char *)arguments.input + sources[i] * BYTES, BYTES); \
                DCL_UNROLL for (unsigned i = 0; i < DCL_DEPTH; i++) \
                    if (first + i * DCL_BLOCK < arguments.count) \
                        dcl_store((char *)arguments.output + (first + i * DCL_BLOCK) * BYTES, packets[i], BYTES); \
            } \
        } \
    }

/* The side of a tile in elements. A row of a tile fills whole sectors of the memory. */
#define DCL_TILE_1 64
#define DCL_TILE_2 64
#define DCL_TILE_4 32
#define DCL_TILE_8 32

#define DCL_ELEMENT_1 unsigned char
#define DCL_ELEMENT_2 unsigned short
#define DCL_ELEMENT_4 unsigned
#define DCL_ELEMENT_8 unsigned long long

/* How many rows or columns of a tile are in the matrix. */
DCL_INLINE unsigned dcl_within(unsigned long long all, unsigned long long first, unsigned side)
{
    return all - first < side ? (unsigned)(all - first) : side;
}

/* A tile is read along the rows of the input and written along the rows of the output. A thread
 * loads all its elements before it stores the first. The rows of a tile are padded by the bytes
 * of a bank, which are four, or by an element, so that the elements of a column are in different
 * banks. */
#define DCL_TRANSPOSE_TILED(NAME, BYTES) \
    DCL_TRANSPOSE_TILED_KERNEL(NAME, BYTES, DCL_ELEMENT_##BYTES, DCL_TILE_##BYTES)
#define DCL_TRANSPOSE_TILED_KERNEL(NAME, BYTES, ELEMENT, SIDE) \
    DCL_KERNEL(NAME, dcl_transpose_tiled_arguments) \
    { \
        enum { PADDING = BYTES < 4 ? 4 / BYTES : 1, STEP = DCL_BLOCK / SIDE, STEPS = SIDE / STEP }; \
        DCL_SHARED(ELEMENT, tile, [SIDE][SIDE + PADDING]); \
        const unsigned long long tile_rows = (arguments.rows + SIDE - 1) / SIDE; \
        const unsigned long long tile_columns = (arguments.columns + SIDE - 1) / SIDE; \
        const unsigned long long tiles = arguments.batch * tile_rows * tile_columns; \
        for (unsigned long long i = DCL_BLOCK_INDEX; i < tiles; i += DCL_GRID) { \
            const unsigned long long tile_row = i / tile_columns, matrix = tile_row / tile_rows; \
            const unsigned long long first_row = (tile_row - matrix * tile_rows) * SIDE; \
            const unsigned long long first_column = (i - tile_row * tile_columns) * SIDE; \
            const unsigned rows = dcl_within(arguments.rows, first_row, SIDE); \
            const unsigned columns = dcl_within(arguments.columns, first_column, SIDE); \
            const unsigned long long start = matrix * arguments.rows * arguments.columns; \
            DCL_PHASE(thread) \
            { \
                const unsigned row = thread / SIDE, column = thread % SIDE; \
                const ELEMENT *from = (const ELEMENT *)arguments.input + start + \
                                      (first_row + row) * arguments.columns + first_column + column; \
                ELEMENT elements[STEPS]; \
                DCL_UNROLL for (unsigned step = 0; step < STEPS; step++) { \
                    elements[step] = row + step * STEP < rows && column < columns ? *from : 0; \
                    from += STEP * arguments.columns; \
                } \
                DCL_UNROLL for (unsigned step = 0; step < STEPS; step++) \
                    tile[row + step * STEP][column] = elements[step]; \
            } \
            DCL_PHASE(thread) \
            { \
                const unsigned column = thread / SIDE, row = thread % SIDE; \
                ELEMENT *to = (ELEMENT *)arguments.output + start + \
                              (first_column + column) * arguments.rows + first_row + row; \
                DCL_UNROLL for (unsigned step = 0; step < STEPS; step++) { \
                    if (column + step * STEP < columns && row < rows) \
                        *to = tile[row][column + step * STEP]; \
                    to += STEP * arguments.rows; \
                } \
            } \
        } \
    }

/* Four rows of four bytes, each a word, as four columns. The first byte is the lowest of a word. */
DCL_INLINE void dcl_transpose_block(const unsigned *rows, unsigned *columns)
{
    /* The even and the odd columns of two rows each. */
    const unsigned even[2] = {(rows[0] & 0xff00ff) | (rows[1] & 0xff00ff) << 8,
                              (rows[2] & 0xff00ff) | (rows[3] & 0xff00ff) << 8};
    const unsigned odd[2] = {(rows[0] >> 8 & 0xff00ff) | (rows[1] & 0xff00ff00),
                             (rows[2] >> 8 & 0xff00ff) | (rows[3] & 0xff00ff00)};
    columns[0] = (even[0] & 0xffff) | even[1] << 16;
    columns[1] = (odd[0] & 0xffff) | odd[1] << 16;
    columns[2] = even[0] >> 16 | (even[1] & 0xffff0000);
    columns[3] = odd[0] >> 16 | (odd[1] & 0xffff0000);
}

/* Matrices of bytes that are moved as words: rows and columns are multiples of four, and so are
 * the addresses. A tile is read along the rows of the input and written along the rows of the
 * output, as above. Between the two each thread transposes one block of four by four bytes. Rows of
 * a tile are padded by a word, so that at most two of the blocks of a warp meet in a bank. */
#define DCL_TRANSPOSE_WORDS(NAME) \
    DCL_KERNEL(NAME, dcl_transpose_tiled_arguments) \
    { \
        enum { SIDE = DCL_TILE_1, WORDS = SIDE / 4, STEP = DCL_BLOCK / WORDS, STEPS = SIDE / STEP }; \
        DCL_SHARED(unsigned, tile, [SIDE][WORDS + 1]); \
        const unsigned long long tile_rows = (arguments.rows + SIDE - 1) / SIDE; \
        const unsigned long long tile_columns = (arguments.columns + SIDE - 1) / SIDE; \
        const unsigned long long tiles = arguments.batch * tile_rows * tile_columns; \
        for (unsigned long long i = DCL_BLOCK_INDEX; i < tiles; i += DCL_GRID) { \
            const unsigned long long tile_row = i / tile_columns, matrix = tile_row / tile_rows; \
            const unsigned long long first_row = (tile_row - matrix * tile_rows) * SIDE; \
            const unsigned long long first_column = (i - tile_row * tile_columns) * SIDE; \
            const unsigned rows = dcl_within(arguments.rows, first_row, SIDE); \
            const unsigned columns = dcl_within(arguments.columns, first_column, SIDE); \
            const unsigned long long start = matrix * arguments.rows * arguments.columns; \
            DCL_PHASE(thread) \
            { \
                const unsigned row = thread / WORDS, word = thread % WORDS; \
                const char *from = (const char *)arguments.input + start + \
                                   (first_row + row) * arguments.columns + first_column + 4 * word; \
                unsigned words[STEPS]; \
                DCL_UNROLL for (unsigned step = 0; step < STEPS; step++) { \
                    const int is_inside = row + step * STEP < rows && 4 * word < columns; \
                    words[step] = is_inside ? dcl_load(from, 4).words[0] : 0; \
                    from += STEP * arguments.columns; \
                } \
                DCL_UNROLL for (unsigned step = 0; step < STEPS; step++) \
                    tile[row + step * STEP][word] = words[step]; \
            } \
            DCL_PHASE(thread) \
            { \
                const unsigned column = thread / WORDS * 4, row = thread % WORDS * 4; \
                char *to = (char *)arguments.output + start + \
                           (first_column + column) * arguments.rows + first_row + row; \
                unsigned block[4], turned[4]; \
                DCL_UNROLL for (unsigned next = 0; next < 4; next++) \
                    block[next] = tile[row + next][column / 4]; \
                dcl_transpose_block(block, turned); \
                DCL_UNROLL for (unsigned next = 0; next < 4; next++) { \
                    const struct dcl_packet packet = {{turned[next], 0, 0, 0}}; \
                    if (column < columns && row < rows) \
                        dcl_store(to, packet, 4); \
                    to += arguments.rows; \
                } \
            } \
        } \
    }

#endif
