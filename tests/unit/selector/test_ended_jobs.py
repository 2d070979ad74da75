"""Jobs whose end an earlier round has read."""

from dataclasses import replace

from make import slurm_job

from slurm_gpu_aware.selector.round_state import EndedJobs


def test_a_job_is_left_out_once_its_end_is_recorded() -> None:
    ended, running = slurm_job(1, state="COMPLETED"), slurm_job(2, state="RUNNING")
    known = EndedJobs()
    assert known.left_out([ended, running]) == [ended, running]
    known.note([ended, running], tracked={"1"})
    assert known.left_out([ended, running]) == [ended, running]
    known.note([ended, running], tracked=())
    assert known.left_out([ended, running]) == [running]


def test_one_that_is_back_in_the_queue_is_not() -> None:
    ended = slurm_job(1, state="FAILED")
    known = EndedJobs()
    known.note([ended], tracked=())
    back = replace(ended, state="PENDING")
    assert known.left_out([back]) == [back]
    assert known.left_out([ended]) == []


def test_tasks_stay_as_they_tell_that_their_array_is_split() -> None:
    task = replace(slurm_job(5), id="4_1", array_id=4, state="COMPLETED")
    known = EndedJobs()
    known.note([task], tracked=())
    assert known.left_out([task]) == [task]


def test_a_job_whose_record_cannot_be_read_has_freed_nothing() -> None:
    known, job = EndedJobs(), replace(slurm_job(3, state="RUNNING"), nodes=("n1",))
    known.freed([job])
    assert known.freed([], [job.raw_id]) == set()
    assert known.freed([]) == {"n1"}
