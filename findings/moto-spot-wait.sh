#!/usr/bin/env bash
# Expected: moto rejects a training job that botocore's documentation excludes: MaxWaitTimeInSeconds "must be equal to
#           or greater than MaxRuntimeInSeconds"; and the job runs for a moment.
# True:     moto accepts it, and the job is Completed in the first answer. A test with moto proves names and types only.
# Source:   moto 5.2.5 with boto3 1.44.8, sagemaker's create_training_job.
. "$(dirname "$0")/lib/environment.sh"
packages "moto[sagemaker]==5.2.5" boto3==1.44.8
seen "documented: True" "status: Completed" <<'PY'
import os
import re

import boto3
from moto import mock_aws

os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/image:1"
with mock_aws():
    client = boto3.client("sagemaker", "us-east-1")
    shape = client.meta.service_model.shape_for("StoppingCondition")
    text = re.sub("<[^>]+>", "", shape.members["MaxWaitTimeInSeconds"].documentation)
    print("documented:", "equal to or greater than MaxRuntimeInSeconds" in text)
    client.create_training_job(
        TrainingJobName="job",
        RoleArn="arn:aws:iam::123456789012:role/role",
        AlgorithmSpecification={"TrainingImage": image, "TrainingInputMode": "File"},
        OutputDataConfig={"S3OutputPath": "s3://bucket/output"},
        ResourceConfig={"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
        EnableManagedSpotTraining=True,
        StoppingCondition={"MaxRuntimeInSeconds": 100, "MaxWaitTimeInSeconds": 50},
    )
    print("status:", client.describe_training_job(TrainingJobName="job")["TrainingJobStatus"])
PY
