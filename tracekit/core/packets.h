/* Records of events in order, as the packets of one sequence of a native Perfetto trace: byte for byte the output of `PacketStore`
   in tracekit.merge.write.pftrace_packets. */

#ifndef TRACEKIT_PACKETS_H
#define TRACEKIT_PACKETS_H

#include "event.h"
#include "growing.h"
#include "index.h"
#include "numbers.h"
#include "object.h"
#include "scratch_file.h"

#define LAST_NS (INT64_MAX - 1)
#define NEVER_NS INT64_MAX
#define PIECE_BYTES (1 << 20)
#define FIRST_HASHED ((uint64_t)1 << 63)

enum kind { SLICE, FLOW, NEXT_FLOW, INSTANT, BEGIN_HALF, END_HALF, COUNTER };
enum table { CATEGORIES, NAMES, KEYS, TEXTS, TABLES };

/* Head of a record; the category, the name and the rest of the fields follow it. */
typedef struct {
    int64_t start, end;
    uint64_t order;
    size_t next;          /* offset of the next record of the stream in memory; 0: none */
    uint32_t category_size, name_size, rest_size, kind;
} PacketRecord;

#define RECORD_SIZE(record) (sizeof(PacketRecord) + (size_t)(record)->category_size + (record)->name_size + (record)->rest_size)

typedef struct {
    size_t at;
    uint32_t size;
} Text;

/* Interned texts of one kind, numbered from 1. */
typedef struct {
    Buffer bytes, texts;
    Index index;
    uint32_t last; /* the number that was found last */
} TextTable;

/* The first start of a flow. */
typedef struct {
    uint64_t key, order;
    int64_t start;
} FlowStart;

typedef struct {
    uint64_t offset;
    size_t size;
} Run;

/* Records of one track: sorted runs in a file, and a chain in memory. */
typedef struct {
    Buffer runs;
    size_t first, last, count;
    int unsorted;
} Stream;

typedef struct {
    uint64_t uuid, parent;
    uint32_t target; /* of halves: the track of their slices */
    Stream stream;
    size_t name_at, name_size;
    int64_t first_ns;
    int64_t lane;
    const char *unit; /* of a counter */
} PacketTrack;

typedef struct {
    Buffer tracks; /* of PacketTrack */
    Index index;
} TrackMap;

/* A run that is merged, in a window. */
typedef struct {
    char *at, *end, *window;
    uint64_t offset;
    size_t left, room;
} Source;

/* The records of a stream, in order. */
typedef struct {
    Source *sources; /* the last one is a placeholder for the records in memory */
    size_t count, current;
    PacketRecord *index;   /* of the records in memory */
    size_t in_memory, next;
    PacketRecord limit;    /* the next record of all other sources */
    int has_limit;
    int failed;
} Merge;

typedef struct {
    TextTable tables[TABLES];
    TrackMap tracks, halves;
    Buffer starts; /* of FlowStart */
    Index start_index;
    Buffer names;
    Buffer memory; /* the records that are not in a file */
    uint64_t order, memory_bytes;
    uint32_t sequence, max_texts;
    ScratchFile scratch; /* its `error` tells a failure from a lack of memory */
    /* While packets are written. */
    enum { TAKING, JOINING, DEFINING, WRITING, WRITTEN } stage;
    Merge merge;
    int merging;
    uint32_t at;
    Buffer open; /* ends of slices, or begins of halves */
    Buffer out, copy;
    int64_t clock, held_ns, instant_ns; /* the times of the packet before, the last empty B and E, the last instant */
    char stamp[8];
    unsigned stamp_size;
} Store;

void prepare_store(Store *store, uint32_t sequence, uint32_t max_texts, uint64_t memory_bytes, const char *folder);
void free_store(Store *store);

/* Returns the number of a text, 0 to write it out, -1 without memory. */
int64_t intern_text(Store *store, enum table table, const char *text, size_t size);

/* Returns the number of a track, -1 without memory. */
int64_t track_number(Store *store, uint64_t uuid, uint64_t pid);

/* Keeps a record; `title` is the name as text, for tracks that are named by their first event. Returns 0 on failure. */
int keep_packet_record(Store *store, uint32_t track, enum kind kind, int64_t start, int64_t end, const char *const fields[3],
    const size_t sizes[3], const char *title, size_t title_size);

/* Names a counter's track. Returns 0 without memory. */
int name_counter(Store *store, uint32_t track, const char *name, size_t size, const char *unit);

/* For packets.c. */
#define PACKET_TRACK(map, number) ((PacketTrack *)(void *)(map)->tracks.data + (number))
#define PACKET_TRACKS(map) ((uint32_t)((map)->tracks.size / sizeof(PacketTrack)))
#define IS_START(record, rest) ((record)->kind == FLOW && (record)->rest_size > 3 && (rest)[3] == 's')

int64_t add_packet_track(TrackMap *map, uint64_t uuid);
int set_name(Store *store, PacketTrack *track, const char *name, size_t size);
int is_first_start(const Store *store, const PacketRecord *record, const char *fields);
int put_packet_record(Store *store, Stream *stream, const PacketRecord *record, const char *const fields[3]);
void forget_halves(Store *store);

/* The records in memory are read from there until end_merge(). Returns 0 without memory. */
int begin_merge(Store *store, Stream *stream);
void end_merge(Store *store);

/* Returns the fields of the next record; NULL at the end, or if the merge failed. */
const char *next_packet_record(Store *store, PacketRecord *record);

extern PyType_Spec pftrace_encoder_spec;

/* Writes about a megabyte of packets to store->out. Returns 0 on failure. */
int write_packets(Store *store);

#endif
