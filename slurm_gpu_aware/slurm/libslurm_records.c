/* Slurm's public library behind a few calls that return plain bytes.
 *
 * Each call sends one RPC and packs what came into one buffer of records: a length, the numbers as
 * 64-bit integers, the texts ended by NUL. So a text stays a text, whatever a user typed into it,
 * and a reader never holds a pointer into Slurm's memory. The function put_KIND of each
 * kind of record is generated from libslurm_fields.py.
 */

/* Longer texts are not read: no honest job has them, and whoever reads them pays. */
#define MAX_TEXT 4096
#define MAX_LIST 65536 /* lists of nodes and of array tasks */

typedef struct {
	char *data;
	size_t size;
	size_t room;
	int out_of_memory;
} aware_reply;

void aware_free(aware_reply *reply)
{
	free(reply->data);
	memset(reply, 0, sizeof(*reply));
}

static void put_bytes(aware_reply *out, const void *bytes, size_t count)
{
	if (out->size + count > out->room) {
		size_t room = (out->size + count) * 2 + 4096;
		char *data = realloc(out->data, room);
		if (!data) {
			out->out_of_memory = 1;
			return;
		}
		out->data = data;
		out->room = room;
	}
	memcpy(out->data + out->size, bytes, count);
	out->size += count;
}

static size_t begin_record(aware_reply *out)
{
	uint32_t length = 0;
	size_t at = out->size;
	put_bytes(out, &length, sizeof(length));
	return at;
}

static void end_record(aware_reply *out, size_t at)
{
	uint32_t length = (uint32_t)(out->size - at - sizeof(length));
	if (!out->out_of_memory)
		memcpy(out->data + at, &length, sizeof(length));
}

static void put_number(aware_reply *out, int64_t number)
{
	put_bytes(out, &number, sizeof(number));
}

/* NO_VAL and INFINITE are the two highest values of each width. */
static int64_t plain(uint64_t value, size_t width)
{
	if (width == 2 && value >= NO_VAL16)
		return (int64_t)value - 0x10000;
	if (width == 4 && value >= NO_VAL)
		return (int64_t)value - 0x100000000;
	return (int64_t)value;
}
#define NUMBER(field) put_number(out, plain((uint64_t)(field), sizeof(field)))

static int too_long(const char *text, size_t most)
{
	return text && strnlen(text, most + 1) > most;
}

static void put_bounded(aware_reply *out, const char *text, size_t most)
{
	if (text && !too_long(text, most))
		put_bytes(out, text, strlen(text));
	put_bytes(out, "", 1);
}

static void put_text(aware_reply *out, const char *text)
{
	put_bounded(out, text, MAX_TEXT);
}

static int finish(aware_reply *out)
{
	if (!out->out_of_memory)
		return SLURM_SUCCESS;
	aware_free(out);
	return ENOMEM;
}

static int failure(void)
{
	return errno ? errno : EIO;
}

/* ---- names that libslurm exports and slurm.h does not declare ---------------------------------- */

extern char *slurm_job_state_string(uint32_t state);
extern const char *slurm_job_state_reason_string(uint32_t reason);
extern char *slurm_node_state_string_complete(uint32_t state);
extern char *slurm_reservation_flags_string(reserve_info_t *reservation);
extern size_t slurm_xsize(void *item);
extern void slurm_xfree(void **item);
extern int slurm_bit_test(bitstr_t *bits, int64_t bit);
extern int64_t slurm_bit_size(bitstr_t *bits);

/* A text that Slurm has made for us. */
static void put_made(aware_reply *out, char *made, size_t most)
{
	put_bounded(out, made, most);
	slurm_xfree((void **)&made);
}

/* ---- what a running job holds on each node ------------------------------------------------------ */

/* The cores and the memory of a job on each of its nodes stand in a structure that Slurm does not
 * publish. Its size is checked before anything is read; where it differs, neither is told. */
struct job_resources {
	bitstr_t *core_bitmap;
	bitstr_t *core_bitmap_used;
	uint32_t cpu_array_cnt;
	uint16_t *cpu_array_value;
	uint32_t *cpu_array_reps;
	uint16_t *cpus;
	uint16_t *cpus_used;
	uint16_t *cores_per_socket;
	uint16_t cr_type;
	uint64_t *memory_allocated;
	uint64_t *memory_used;
	uint32_t next_step_node_inx;
	uint32_t nhosts;
	bitstr_t *node_bitmap;
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
	uint32_t *node_ranks;
#endif
	uint32_t node_req;
	char *nodes;
	uint32_t ncpus;
	uint32_t *sock_core_rep_count;
	uint16_t *sockets_per_node;
	uint16_t *tasks_per_node;
	uint16_t threads_per_core;
	uint8_t whole_node;
};

/* Cores of the Nth node of a job as "0-1,3", counted over its sockets; "*" if they are not told. */
static void put_cores(aware_reply *out, const struct job_resources *held, int64_t first, int64_t count)
{
	char word[64];
	int some = 0;
	for (int64_t core = 0; core < count; core++) {
		int64_t last = core;
		if (!slurm_bit_test(held->core_bitmap, first + core))
			continue;
		while (last + 1 < count && slurm_bit_test(held->core_bitmap, first + last + 1))
			last++;
		snprintf(word, sizeof(word), "%s%" PRId64 "-%" PRId64, some ? "," : "", core, last);
		put_bytes(out, word, strlen(word));
		some = 1;
		core = last;
	}
}

/* A line per node: name TAB CPUs TAB cores TAB MB TAB gres. */
static void put_shares(aware_reply *out, const job_info_t *job)
{
	const struct job_resources *held = (const void *)job->job_resrcs;
	if (held && slurm_xsize((void *)held) == sizeof(*held) && held->nodes && held->cpus) {
		int64_t bits = held->core_bitmap ? slurm_bit_size(held->core_bitmap) : 0, first = 0;
		uint32_t group = 0, repeated = 0;
		hostlist_t *hosts = slurm_hostlist_create(held->nodes);
		for (uint32_t i = 0; hosts && i < held->nhosts; i++) {
			char *host = slurm_hostlist_shift(hosts);
			char word[64];
			int64_t cores = 0;
			if (!host)
				break;
			if (held->sock_core_rep_count && held->sockets_per_node && held->cores_per_socket) {
				if (repeated >= held->sock_core_rep_count[group]) {
					group++;
					repeated = 0;
				}
				repeated++;
				cores = held->sockets_per_node[group] * held->cores_per_socket[group];
			}
			put_bytes(out, host, strlen(host));
			snprintf(word, sizeof(word), "\t%u\t", held->cpus[i]);
			put_bytes(out, word, strlen(word));
			if (cores && first + cores <= bits)
				put_cores(out, held, first, cores);
			else
				put_bytes(out, "*", 1);
			first += cores;
			snprintf(word, sizeof(word), "\t%" PRIu64 "\t",
				 held->memory_allocated ? held->memory_allocated[i] : 0);
			put_bytes(out, word, strlen(word));
			if (i < job->gres_detail_cnt && job->gres_detail_str[i])
				put_bytes(out, job->gres_detail_str[i],
					  strlen(job->gres_detail_str[i]));
			put_bytes(out, "\n", 1);
			free(host);
		}
		if (hosts)
			slurm_hostlist_destroy(hosts);
	}
	put_bytes(out, "", 1);
}

/* ---- records: the generated part writes each field by the macros below -------------------------- */

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
#define JOB_ID(job) ((job)->step_id.job_id)
#define JOB_EXCLUSIVE(job) ((job)->exclusive)
/* 1: asked for by the job, or by the partition for all its jobs */
#define JOB_OVERSUBSCRIBE(job) ((job)->oversubscribe == JOB_OVERSUBSCRIBE_YES)
#else
#define JOB_ID(job) ((job)->job_id)
#define JOB_OVERSUBSCRIBE(job) ((job)->shared == JOB_SHARED_OK)
/* As there: 0 none, 1 whole nodes, 2 nodes of its user. */
#define JOB_EXCLUSIVE(job) ((job)->shared == JOB_SHARED_NONE ? 1 : \
	(job)->shared >= JOB_SHARED_USER && (job)->shared <= JOB_SHARED_TOPO ? (job)->shared : 0)
#endif

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 5, 0)
#define JOB_SEGMENT_SIZE(job) ((job)->segment_size)
#define PARTITION_TOPOLOGY(partition) ((partition)->topology_name)
#define LICENSE_NODES(license) ((license)->nodes)
#else
#define JOB_SEGMENT_SIZE(job) ((uint16_t)0)
#define PARTITION_TOPOLOGY(partition) NULL
#define LICENSE_NODES(license) NULL
#endif

/* From 25.11 on a job's record has the command line, and the answer to a submission a step's id. */
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
#define JOB_SUBMIT_LINE(job) ((job)->submit_line)
#define SUBMITTED_ID(response) ((response)->step_id.job_id)
#else
#define JOB_SUBMIT_LINE(job) NULL
#define SUBMITTED_ID(response) ((response)->job_id)
#endif

/* Why it is pending, without blanks, as scontrol and squeue say it. */
static void put_reason(aware_reply *out, job_info_t *job)
{
	for (char *at = job->state_desc; at && *at; at++)
		if (isspace((unsigned char)*at))
			*at = '_';
	put_text(out, job->state_desc ? job->state_desc
				      : slurm_job_state_reason_string(job->state_reason));
}

/* The program of a command line, without its folders: "srun" of "/usr/bin/srun -N2 a.out". */
static void put_program(aware_reply *out, const char *line)
{
	size_t length = line ? strcspn(line, " ") : 0, start = length;
	while (start && line[start - 1] != '/')
		start--;
	if (length - start <= MAX_TEXT)
		put_bytes(out, line + start, length - start);
	put_bytes(out, "", 1);
}

static uint16_t allocated_cpus(node_info_t *node)
{
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 5, 0)
	return node->alloc_cpus;
#else
	uint16_t cpus = 0;
	slurm_get_select_nodeinfo(node->select_nodeinfo, SELECT_NODEDATA_SUBCNT,
				  NODE_STATE_ALLOCATED, &cpus);
	return cpus;
#endif
}

static uint64_t allocated_memory(node_info_t *node)
{
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 5, 0)
	return node->alloc_memory;
#else
	uint64_t memory = 0;
	slurm_get_select_nodeinfo(node->select_nodeinfo, SELECT_NODEDATA_MEM_ALLOC,
				  NODE_STATE_ALLOCATED, &memory);
	return memory;
#endif
}

/* GENERATED RECORDS */

/* ---- calls: each returns 0 or Slurm's error number ---------------------------------------------- */

static int pack_jobs(job_info_msg_t *found, aware_reply *out)
{
	for (uint32_t i = 0; i < found->record_count; i++)
		if (JOB_ID(&found->job_array[i])) /* 0: a sibling's copy in a federation */
			put_job(out, &found->job_array[i]);
	slurm_free_job_info_msg(found);
	return finish(out);
}

/* since: 0, or last_update of an earlier answer: SLURM_NO_CHANGE_IN_DATA if none changed. */
int aware_jobs(int64_t since, int64_t *last_update, aware_reply *out)
{
	job_info_msg_t *found = NULL;
	if (slurm_load_jobs(since, &found, SHOW_ALL | SHOW_DETAIL | SHOW_LOCAL))
		return failure();
	*last_update = found->last_update;
	return pack_jobs(found, out);
}

int aware_job(uint32_t job_id, aware_reply *out)
{
	job_info_msg_t *found = NULL;
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
	slurm_step_id_t id = SLURM_STEP_ID_INITIALIZER;
	id.job_id = job_id;
#else
	uint32_t id = job_id;
#endif
	if (slurm_load_job(&found, id, SHOW_ALL | SHOW_DETAIL | SHOW_LOCAL))
		return failure();
	return pack_jobs(found, out);
}

int aware_nodes(aware_reply *out)
{
	node_info_msg_t *found = NULL;
	if (slurm_load_node(0, &found, SHOW_ALL | SHOW_DETAIL | SHOW_MIXED))
		return failure();
	for (uint32_t i = 0; i < found->record_count; i++)
		if (found->node_array[i].name && *found->node_array[i].name)
			put_node(out, &found->node_array[i]);
	slurm_free_node_info_msg(found);
	return finish(out);
}

int aware_partitions(aware_reply *out)
{
	partition_info_msg_t *found = NULL;
	if (slurm_load_partitions(0, &found, SHOW_ALL))
		return failure();
	for (uint32_t i = 0; i < found->record_count; i++)
		put_partition(out, &found->partition_array[i]);
	slurm_free_partition_info_msg(found);
	return finish(out);
}

int aware_reservations(aware_reply *out)
{
	reserve_info_msg_t *found = NULL;
	if (slurm_load_reservations(0, &found))
		return failure();
	for (uint32_t i = 0; i < found->record_count; i++)
		put_reservation(out, &found->reservation_array[i]);
	slurm_free_reservation_info_msg(found);
	return finish(out);
}

int aware_licenses(aware_reply *out)
{
	license_info_msg_t *found = NULL;
	if (slurm_load_licenses(0, &found, SHOW_ALL))
		return failure();
	for (uint32_t i = 0; i < found->num_lic; i++)
		put_license(out, &found->lic_array[i]);
	slurm_free_license_info_msg(found);
	return finish(out);
}

/* The configuration has no structure that all releases share: Slurm prints it. Only administrators
 * write what stands in it. */

int aware_settings(aware_reply *out)
{
	slurm_conf_t *found = NULL;
	FILE *file;
	if (slurm_load_ctl_conf(0, &found))
		return failure();
	file = open_memstream(&out->data, &out->size);
	if (file) {
		slurm_print_ctl_conf(file, found);
		fclose(file);
	}
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
	slurm_free_conf(found);
#else
	slurm_free_ctl_conf(found);
#endif
	return file ? 0 : ENOMEM;
}

/* texts[i] NULL or numbers[i] < 0: the field stays as it is. "" clears a text. */
int aware_update_job(char *job_id, char **texts, int64_t *numbers, aware_reply *out)
{
	job_desc_msg_t job;
	job_array_resp_msg_t *results = NULL;
	int code = 0;
	slurm_init_job_desc_msg(&job);
	job.job_id_str = job_id;
	set_job(&job, texts, numbers);
	errno = 0;
	if (slurm_update_job2(&job, &results))
		code = failure();
	for (uint32_t i = 0; results && i < results->job_array_count; i++) {
		size_t at = begin_record(out);
		put_number(out, results->error_code[i]);
		put_text(out, results->job_array_id[i]);
		put_text(out, results->err_msg ? results->err_msg[i] : NULL);
		end_record(out, at);
	}
	if (results)
		slurm_free_job_array_resp(results);
	return code ? code : finish(out);
}

/* A batch job of one GPU that Slurm holds and that ends at once if it is ever released. */
int aware_submit_held(uint32_t user, uint32_t group, char *name, char *partition, char *comment,
		      int64_t *job_id)
{
	job_desc_msg_t wanted;
	submit_response_msg_t *made = NULL;
	char *environment[] = {"PATH=/usr/bin:/bin", NULL};
	slurm_init_job_desc_msg(&wanted);
	wanted.user_id = user;
	wanted.group_id = group;
	wanted.name = name;
	wanted.partition = partition;
	wanted.comment = comment;
	wanted.priority = 0;
	wanted.requeue = 0;
	wanted.time_limit = 1;
	wanted.min_nodes = wanted.max_nodes = 1;
	wanted.tres_per_node = "gres/gpu:1";
	wanted.script = "#!/bin/sh\nexit 0\n";
	wanted.work_dir = "/";
	wanted.std_in = wanted.std_out = wanted.std_err = "/dev/null";
	wanted.environment = environment;
	wanted.env_size = 1;
	errno = 0;
	if (slurm_submit_batch_job(&wanted, &made))
		return failure();
	*job_id = SUBMITTED_ID(made);
	slurm_free_submit_response_response_msg(made);
	return 0;
}

int aware_cancel_job(char *job_id)
{
	errno = 0;
	return slurm_kill_job2(job_id, SIGKILL, 0, NULL) ? failure() : 0;
}

/* A job that does not run any more stays as it is: one that has ended would run again. */
int aware_requeue_job(char *job_id)
{
	job_array_resp_msg_t *results = NULL;
	int code = 0;
	errno = 0;
	if (slurm_requeue2(job_id, JOB_RUNNING, &results))
		code = failure();
	for (uint32_t i = 0; results && i < results->job_array_count; i++)
		if (results->error_code[i])
			code = results->error_code[i];
	if (results)
		slurm_free_job_array_resp(results);
	return code;
}

int aware_create_reservation(char *name, char *users, char *licenses, char *nodes, char *tres,
			     char *comment, int64_t start, int64_t end, uint64_t flags)
{
	resv_desc_msg_t wanted;
	char *made;
	slurm_init_resv_desc_msg(&wanted);
	wanted.name = name;
	wanted.users = users;
	wanted.licenses = licenses;
	wanted.node_list = nodes;
	wanted.tres_str = tres;
	wanted.comment = comment;
	if (!nodes)
		wanted.node_cnt = 0;
	wanted.start_time = start;
	wanted.end_time = end;
	wanted.flags = flags;
	errno = 0;
	made = slurm_create_reservation(&wanted);
	if (!made)
		return failure();
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
	slurm_xfree((void **)&made);
#else
	free(made);
#endif
	return 0;
}

/* comment NULL: it stays as it is; empty: it is removed. */
int aware_move_reservation(char *name, char *comment, int64_t start, int64_t end)
{
	resv_desc_msg_t wanted;
	slurm_init_resv_desc_msg(&wanted);
	wanted.name = name;
	wanted.comment = comment;
	if (start >= 0)
		wanted.start_time = start;
	wanted.end_time = end;
	return slurm_update_reservation(&wanted) ? failure() : 0;
}

int aware_delete_reservation(char *name)
{
	reservation_name_msg_t wanted = {.name = name};
	return slurm_delete_reservation(&wanted) ? failure() : 0;
}

int aware_update_node(char *name, uint32_t state, char *reason)
{
	update_node_msg_t wanted;
	slurm_init_update_node_msg(&wanted);
	wanted.node_names = name;
	wanted.node_state = state;
	wanted.reason = reason;
#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(26, 5, 0)
	wanted.reason_uid = getuid();
#endif
	return slurm_update_node(&wanted) ? failure() : 0;
}
