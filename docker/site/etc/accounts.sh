#!/bin/sh
# Accounts and limits of the site "hill": two groups, and a QOS for long jobs beside the ordinary one.
set -u
sacctmgr -iQ add account chem,physics Cluster=hill Fairshare=10
sacctmgr -iQ add user alice Account=chem Cluster=hill DefaultAccount=chem
sacctmgr -iQ add user bob Account=physics Cluster=hill DefaultAccount=physics
sacctmgr -iQ add qos long Priority=0
sacctmgr -iQ modify qos normal set Priority=10 MaxTRESPerUser=gres/gpu=12 MaxJobsPerUser=30
sacctmgr -iQ modify qos long set MaxTRESPerUser=gres/gpu=6 MaxWall=1-0
sacctmgr -iQ modify user alice,bob set qos+=long
