/* The pass over the text. It writes an event or leaves it to Python, depending on the bytes of the event only. */

#include "numbers.h"
#include "rewriter.h"

/* Copies unchanged text, which is short: 16 bytes at a time if both sides have room for that. */
INLINE char *copy_between(char *out, const char *from, size_t size, const char *end)
{
    if (size > 256 || (size_t)(end - from) < size + 16) {
        memcpy(out, from, size);
        return out + size;
    }
    for (size_t at = 0; at < size; at += 16)
        memcpy(out + at, from + at, 16);
    return out + size;
}

/* Returns true for metadata that the merge writes itself for every process and thread. */
static int is_named_metadata(Span name)
{
    return IS_TEXT(name, "\"thread_name\"") || IS_TEXT(name, "\"thread_sort_index\"") || IS_TEXT(name, "\"process_name\"")
        || IS_TEXT(name, "\"process_labels\"") || IS_TEXT(name, "\"process_sort_index\"");
}

/* Appends an event and a comma. */
static int append_event(Buffer *buffer, const char *at, const char *end)
{
    return append(buffer, at, (size_t)(end - at)) && append(buffer, ",", 1);
}

/* Computes the same integers as ClockMap.offset_at in tracekit.merge.align.domains. */
static int64_t offset_at(const Rewriter *self, int64_t time)
{
    size_t low = 0, high = self->knot_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (time < self->knots[middle].time_ns)
            high = middle;
        else
            low = middle + 1;
    }
    size_t after = low < 1 ? 1 : low;
    if (after > self->knot_count - 1)
        after = self->knot_count - 1;
    const Knot *from = &self->knots[after - 1], *to = &self->knots[after];
    __int128 above = (__int128)(to->offset_ns - from->offset_ns) * (time - from->time_ns);
    int64_t below = to->time_ns - from->time_ns;
    __int128 floor = above / below;
    floor -= above % below != 0 && above < 0;
    __int128 offset = from->offset_ns + floor;
    return offset > INT64_MAX / 4 || offset < INT64_MIN / 4 ? INT64_MIN : (int64_t)offset;
}

/* Times of an event in the merged trace. */
typedef struct {
    int64_t time_ns, duration_ns;
} Moved;

/* Returns true if the times of an event fit into the merged trace. */
INLINE int move_times(const Rewriter *self, const Event *e, Moved *moved)
{
    int64_t time = e->ts_ns;
    if (*e->ts_at == '-' || time > INT64_MAX / 2)
        return 0;
    moved->duration_ns = e->seen & F_DUR ? e->dur_ns : 0;
    if (moved->duration_ns >= MAX_DURATION_NS)
        return 0;
    if (self->knot_count) {
        int64_t offset = offset_at(self, time);
        if (offset == INT64_MIN)
            return 0;
        if (moved->duration_ns > 0) {
            int64_t later = offset_at(self, time + moved->duration_ns);
            if (later == INT64_MIN)
                return 0;
            moved->duration_ns += later - offset;
            if (moved->duration_ns < 0 || moved->duration_ns >= MAX_DURATION_NS)
                return 0;
        }
        time += offset;
    }
    if (time < self->least_ns || (self->shift_ns > 0 && time > INT64_MAX - self->shift_ns))
        return 0;
    time += self->shift_ns;
    moved->time_ns = time;
    return time >= 0 && time <= self->most_ns;
}

INLINE int moves_id(const Rewriter *self, unsigned char kind)
{
    return kind == ID_DIRECT || (kind == ID_NUMBER && self->id_offset == KEEP_OFFSET);
}

/* Returns 1 for an event that can be written here; metadata has other rules. */
INLINE int is_simple(const Rewriter *self, const Event *e)
{
    const uint32_t needed = F_PH | F_PID | F_TID | F_TS;
    if ((e->seen & needed) != needed || e->odd)
        return 0;
    if (!(e->seen & F_NAME) && e->phase != 'E')
        return 0;
    /* Events of tracekit that report losses keep their arguments. */
    if (self->reader.args_mode && (e->seen & F_NAME) && begins(e->name, "\"tracekit", 9))
        return 0;
    if ((e->seen & F_DUR) && !e->dur_usable)
        return 0;
    if ((e->seen & F_BIND_ID) && !moves_id(self, e->bind_id_kind))
        return 0;
    switch (e->phase) {
    case 'X':
        return (e->seen & F_DUR) != 0;
    case 's': case 't': case 'f':
        return (e->seen & (F_ID | F_CAT)) == (F_ID | F_CAT) && moves_id(self, e->id_kind);
    case 'i': case 'I': case 'R': case 'B': case 'E':
        return 1;
    case 'C':
        return (e->seen & F_ARGS) && is_plain_counter(&self->reader, e->args.at);
    case 'b': case 'e': case 'n':
        return ((e->seen & F_ID) != 0) != ((e->seen & F_ID2) != 0) && e->id_kind != ID_ODD;
    default:
        return 0;
    }
}

static int is_noted(const Rewriter *self, const Event *e)
{
    return e->seen & F_NAME && e->name.at[1] == self->noted_name[1] && (size_t)(e->name.end - e->name.at) >= self->noted_name_size
        && memcmp(e->name.at, self->noted_name, self->noted_name_size) == 0;
}

/* Writes the kept ids of arguments as ` , "args": {...}`, or nothing. */
static char *write_kept_ids(const Rewriter *self, char *out, const Event *e)
{
    char *const start = out;
    for (int i = 0; i < e->kept_id_count; i++) {
        const Edit *id = &e->kept_ids[i];
        if (id->span.at == id->span.end)
            continue;
        if (out == start) {
            memcpy(out, ",\"args\":{", 9);
            out += 9;
        } else {
            *out++ = ',';
        }
        *out++ = '"';
        memcpy(out, id->key, 11);
        memcpy(out + 11, "\":", 2);
        int moves = self->moves_arg_ids && id->span.end - id->span.at <= MAX_ARG_ID;
        out = write_number(out + 13, id->number + (moves ? (uint64_t)self->id_offset : 0));
    }
    if (out != start)
        *out++ = '}';
    return out;
}

/* Makes the replacement of a known place. */
static void rewrite_place(KnownPlace *place, const Track *track)
{
    char *out = place->new_text;
    memcpy(out, place->text, place->pid_at);
    out += place->pid_at;
    memcpy(out, track->new_pid, track->new_size);
    out += track->new_size;
    memcpy(out, place->text + place->pid_end, (size_t)(place->tid_at - place->pid_end));
    out += place->tid_at - place->pid_end;
    place->new_tid_at = (unsigned char)(out - place->new_text);
    memcpy(out, track->new_tid, TID_SIZE);
    out += TID_SIZE;
    memcpy(out, place->text + place->tid_stop, (size_t)(place->size - place->tid_stop));
    out += place->size - place->tid_stop;
    place->new_size = (unsigned char)(out - place->new_text);
}

/* Returns the kinds of edits that an event needs, a bit for each; the rest of its text stays. */
INLINE unsigned needed_edits(const Rewriter *self, const Event *e)
{
    const unsigned always = 1u << EDIT_PID | 1u << EDIT_TID | 1u << EDIT_PLACE | 1u << EDIT_TS | 1u << EDIT_ARGS;
    const unsigned moved = self->id_offset > 0 ? 1u << EDIT_BIND_ID : 0;
    unsigned needed = always | moved | (self->moves_arg_ids ? 1u << EDIT_ARG : 0) | (self->knot_count ? 1u << EDIT_DUR : 0);
    switch (e->phase) {
    case 'X':
        return needed | 1u << EDIT_DUR;
    case 's': case 't': case 'f':
        return moved ? needed | 1u << EDIT_ID : needed;
    case 'b': case 'e': case 'n':
        return needed | 1u << EDIT_ID | (self->prefix_size ? 1u << EDIT_LOCAL_ID : 0);
    case 'i': case 'I': case 'R':
        return needed | 1u << EDIT_SCOPE;
    default:
        return needed;
    }
}

/* Writes the id of an asynchronous event with the prefix of this input: all ranks would share a plain id. */
static char *write_local_id(const Rewriter *self, char *out, Span id)
{
    int quoted = *id.at == '"';
    size_t size = (size_t)(id.end - id.at) - (quoted ? 2 : 0);
    memcpy(out, "\"id2\":{\"local\":\"", 16);
    memcpy(out + 16, self->prefix, self->prefix_size);
    out += 16 + self->prefix_size;
    memcpy(out, id.at + quoted, size);
    memcpy(out + size, "\"}", 2);
    return out + size + 2;
}

/* Writes an event at `out`, which has room for it, and returns its end; sets `tid_at` and `dur_at` to the places of these fields. */
INLINE char *write_event(const Rewriter *self, char *out, const char *from, const char *behind, const Event *e, const Track *track,
                         const Moved *moved, char **tid_at, char **dur_at)
{
    const Reader *reader = &self->reader;
    const unsigned needed = needed_edits(self, e);
    const int async = e->phase == 'b' || e->phase == 'e' || e->phase == 'n';
    for (const Edit *edit = reader->edits, *last = edit + reader->edit_count; edit < last; edit++) {
        const char *at = edit->span.at;
        if (!(needed >> edit->kind & 1) || (edit->kind == EDIT_ARG && edit->span.end - at > MAX_ARG_ID))
            continue;
        const int local = async && edit->kind == EDIT_ID;
        if (local)
            at = e->id.at;
        out = copy_between(out, from, (size_t)(at - from), reader->end);
        from = edit->span.end;
        switch (edit->kind) {
        case EDIT_PID:
            memcpy(out, track->new_pid, sizeof track->new_pid);
            out += track->new_size;
            break;
        case EDIT_TID:
            *tid_at = out;
            memcpy(out, track->new_tid, sizeof track->new_tid);
            out += TID_SIZE;
            break;
        case EDIT_PLACE:
            *tid_at = out + e->known->new_tid_at;
            memcpy(out, e->known->new_text, sizeof e->known->new_text);
            out += e->known->new_size;
            break;
        case EDIT_TS:
            out = write_us(out, (uint64_t)moved->time_ns);
            break;
        case EDIT_DUR:
            *dur_at = out;
            out = write_us(out, (uint64_t)moved->duration_ns);
            break;
        case EDIT_SCOPE:
            *out++ = 'p';
            break;
        case EDIT_ARGS:
            out = write_kept_ids(self, out, e);
            break;
        case EDIT_LOCAL_ID:
            memcpy(out, self->prefix, self->prefix_size);
            out += self->prefix_size;
            break;
        case EDIT_ID: case EDIT_ARG: case EDIT_BIND_ID:
            out = local ? write_local_id(self, out, edit->span) : write_number(out, edit->number + (uint64_t)self->id_offset);
        }
    }
    return copy_between(out, from, (size_t)(behind - from), reader->end);
}

enum outcome note_entry(Rewriter *self, uint32_t number, const Entry *entry)
{
    LaneLog *log = &LOGS(self)[number];
    size_t before = log->bytes.size;
    enum outcome outcome = add_entry(log, entry);
    if (outcome != DONE)
        return outcome;
    self->log_bytes += log->bytes.size - before;
    if (self->log_bytes <= self->most_log_bytes)
        return DONE;
    for (size_t i = 0; i < LOG_COUNT(self); i++) {
        outcome = spill_log(&LOGS(self)[i], &self->scratch);
        if (outcome != DONE)
            return outcome;
    }
    self->log_bytes = 0;
    return DONE;
}

/* The kind of work of an event on a GPU, as `work_of` in merge/plan/titles.py; 0 for anything else. */
static unsigned char work_of(const Event *e)
{
    enum { COMPUTE = 1, NCCL = 2, HOST_TO_DEVICE = 4, DEVICE_TO_HOST = 8, DEVICE_TO_DEVICE = 16, MEMSET = 32, SYNC = 64 };
    switch (e->cat.end - e->cat.at) {
    case 8:
        if (IS_TEXT(e->cat, "\"kernel\"") || IS_TEXT(e->cat, "\"Kernel\""))
            return begins(e->name, "\"nccl", 5) || begins(e->name, "\"rccl", 5) || begins(e->name, "\"msccl", 6) ? NCCL : COMPUTE;
        if (IS_TEXT(e->cat, "\"Memset\""))
            return MEMSET;
        if (IS_TEXT(e->cat, "\"Memcpy\""))
            break;
        return 0;
    case 11:
        return IS_TEXT(e->cat, "\"cuda_sync\"") ? SYNC : 0;
    case 12:
        if (IS_TEXT(e->cat, "\"gpu_memset\""))
            return MEMSET;
        if (IS_TEXT(e->cat, "\"gpu_memcpy\""))
            break;
        return 0;
    default:
        return 0;
    }
    if (begins(e->name, "\"Memcpy HtoD", 12))
        return HOST_TO_DEVICE;
    if (begins(e->name, "\"Memcpy DtoH", 12))
        return DEVICE_TO_HOST;
    return begins(e->name, "\"Memcpy DtoD", 12) || begins(e->name, "\"Memcpy PtoP", 12) ? DEVICE_TO_DEVICE : 0;
}

/* Notes pid, tid and category of an event on an unknown track. */
static enum stop ask_for_track(Rewriter *self, const Event *e)
{
    const Span spans[] = {e->pid, e->tid, e->seen & F_CAT ? e->cat : (Span){e->pid.at, e->pid.at}};
    self->new_track.size = 0;
    for (int i = 0; i < 3; i++) {
        self->new_sizes[i] = (size_t)(spans[i].end - spans[i].at);
        if (!append(&self->new_track, spans[i].at, self->new_sizes[i]))
            return STOP_MEMORY;
    }
    return STOP_NEW;
}

INLINE int is_logged(char phase)
{
    return phase == 'X' || phase == 's' || phase == 't' || phase == 'f' || phase == 'B' || phase == 'E';
}

/* Logs a slice, a half of one or a flow, which was written from `from` to `end`. */
static enum outcome log_event(Rewriter *self, const Event *e, uint32_t log, const Moved *moved, const char *from, const char *end,
                              const char *tid_at, const char *dur_at)
{
    const uint64_t start_at = self->taken + self->out.size;
    Entry entry = {.kind = ENTRY_FLOW, .time_ns = moved->time_ns, .at = start_at + (uint64_t)(tid_at - from)};
    if (e->phase == 'X') {
        entry.kind = ENTRY_SLICE;
        entry.duration_ns = moved->duration_ns;
        if (dur_at != NULL) {
            char digits[24];
            entry.dur_at = start_at + (uint64_t)(dur_at - from);
            entry.dur_size = (uint32_t)(write_us(digits, (uint64_t)moved->duration_ns) - digits);
        }
    } else if (e->phase == 'B' || e->phase == 'E') {
        const Span none = {from, from}, name = e->seen & F_NAME ? e->name : none, cat = e->seen & F_CAT ? e->cat : none;
        entry.kind = e->phase == 'B' ? ENTRY_BEGIN : ENTRY_END;
        entry.label = label_of(name.at, name.end, cat.at, cat.end);
        entry.event_at = start_at;
        entry.event_size = (uint32_t)(end - from) - 1;
    }
    return note_entry(self, log, &entry);
}

/* Writes an event, or returns the reason for not writing it. */
static enum stop rewrite_event(void *object, const char *p, const char *behind, const Event *e)
{
    Rewriter *self = object;
    const int metadata = e->phase == 'M';
    if (metadata) {
        if (!(e->seen & F_NAME) || e->odd || self->id_offset == KEEP_OFFSET)
            return STOP_ODD;
        if (is_named_metadata(e->name))
            return append_event(&self->metadata, p, behind) ? STOP_NONE : STOP_MEMORY;
        const uint32_t needed = F_PID | F_TID | F_TS | F_ARGS;
        if (!IS_TEXT(e->name, "\"tracekit_timestamp\"") || (e->seen & needed) != needed || (e->seen & (F_DUR | F_BIND_ID)))
            return STOP_ODD;
    } else if (!is_simple(self, e)) {
        return STOP_ODD;
    }
    Moved moved;
    if (!move_times(self, e, &moved))
        return STOP_ODD;
    int64_t number = track_of(&self->table, e);
    if (number < 0)
        return metadata ? STOP_ODD : ask_for_track(self, e);
    Track *track = TRACK(&self->table, number);
    if (e->phase == 'X' && (e->seen & F_CAT))
        track->work |= work_of(e);
    if (e->known != NULL && e->known->new_size == 0)
        rewrite_place(e->known, track);
    if (is_noted(self, e) && !append_event(&self->noted, p, behind))
        return STOP_MEMORY;
    /* An edit takes up to 24 bytes, but for those of an id, of arguments and of a place; and 16 more may be touched. */
    size_t most = (size_t)(behind - p) + 24 * (size_t)self->reader.edit_count + 40 * MAX_KEPT_IDS + 256;
    if (!reserve(&self->out, most))
        return STOP_MEMORY;
    char *from = self->out.data + self->out.size, *tid_at = from, *dur_at = NULL;
    char *out = write_event(self, from, p, behind, e, track, &moved, &tid_at, &dur_at);
    memcpy(out, ",\n", 2);
    out += 2;
    if (is_logged(e->phase)) {
        enum outcome outcome = log_event(self, e, (uint32_t)track->log, &moved, from, out, tid_at, dur_at);
        if (outcome != DONE)
            return outcome == NO_MEMORY ? STOP_MEMORY : STOP_FILE;
    }
    self->written[(unsigned char)e->phase]++;
    self->out.size += (size_t)(out - from);
    return STOP_NONE;
}

enum stop rewrite_events(Rewriter *self, Window *window)
{
    return scan_window(&self->reader, &self->place, window, rewrite_event, self);
}
