"""The evaluator of policies that tests use, by examples of AWS's documentation."""

from typing import Any

import pytest
from policies import ALLOWED, EXPLICIT, IMPLICIT, evaluate

IAM = "https://docs.aws.amazon.com/IAM/latest/UserGuide"
# reference_policies_examples_s3_rw-bucket.html
BUCKET = {
    "Statement": [
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": ["arn:aws:s3:::amzn-s3-demo-bucket"],
        },
        {
            "Effect": "Allow",
            "Action": "s3:*Object",
            "Resource": ["arn:aws:s3:::amzn-s3-demo-bucket/*"],
        },
    ]
}
# reference_policies_examples_aws_deny-requested-region.html
REGIONS = {
    "Statement": {
        "Effect": "Deny",
        "NotAction": ["iam:*", "sts:*"],
        "Resource": "*",
        "Condition": {"StringNotEquals": {"aws:RequestedRegion": ["eu-central-1", "eu-west-1"]}},
    }
}
EVERYTHING = {"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}
# id_roles_use_passrole.html
PASS = {
    "Statement": {
        "Effect": "Allow",
        "Action": "iam:PassRole",
        "Resource": "arn:aws:iam::123456789012:role/EC2-roles-for-XYZ-*",
        "Condition": {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
    }
}
# reference_policies_examples_s3_home-directory-console.html
HOME = {
    "Statement": {
        "Effect": "Allow",
        "Action": "s3:*",
        "Resource": "arn:aws:s3:::home-bucket/home/${aws:username}/*",
    }
}
# access_tags_multiple.html: every tag of the request has to be one of these keys
TAGS = {
    "Statement": {
        "Effect": "Allow",
        "Action": "ec2:CreateTags",
        "Resource": "*",
        "Condition": {"ForAllValues:StringEquals": {"aws:TagKeys": ["environment", "CostCenter"]}},
    }
}
# sagemaker/latest/dg/security_iam_id-based-policy-examples.html
TYPES = {
    "Statement": {
        "Effect": "Allow",
        "Action": "sagemaker:CreateTrainingJob",
        "Resource": "*",
        "Condition": {"ForAllValues:StringLike": {"sagemaker:InstanceTypes": ["ml.c5.*"]}},
    }
}
JOB = "sagemaker:CreateTrainingJob"
ANY = "arn:aws:sagemaker:us-east-1:1:training-job/x"


@pytest.mark.parametrize(
    ("policies", "action", "resource", "context", "decision"),
    [
        ([BUCKET], "s3:GetObject", "arn:aws:s3:::amzn-s3-demo-bucket/a/b", {}, ALLOWED),
        ([BUCKET], "S3:getobject", "arn:aws:s3:::amzn-s3-demo-bucket/a/b", {}, ALLOWED),
        ([BUCKET], "s3:GetObject", "arn:aws:s3:::amzn-s3-demo-bucket", {}, IMPLICIT),
        ([BUCKET], "s3:ListBucket", "arn:aws:s3:::amzn-s3-demo-bucket", {}, ALLOWED),
        ([BUCKET], "s3:ListBucket", "arn:aws:s3:::another", {}, IMPLICIT),
        ([BUCKET], "s3:GetObjectAcl", "arn:aws:s3:::amzn-s3-demo-bucket/a", {}, IMPLICIT),
        ([], "s3:GetObject", "*", {}, IMPLICIT),
        ([EVERYTHING, REGIONS], JOB, ANY, {"aws:RequestedRegion": ["us-east-1"]}, EXPLICIT),
        ([EVERYTHING, REGIONS], JOB, ANY, {"aws:RequestedRegion": ["eu-west-1"]}, ALLOWED),
        ([EVERYTHING, REGIONS], "iam:GetRole", "*", {"aws:RequestedRegion": ["us"]}, ALLOWED),
        ([PASS], "iam:PassRole", "arn:aws:iam::123456789012:role/other", {}, IMPLICIT),
        (
            [PASS],
            "iam:PassRole",
            "arn:aws:iam::123456789012:role/EC2-roles-for-XYZ-1",
            {"iam:PassedToService": ["ec2.amazonaws.com"]},
            ALLOWED,
        ),
        (
            [PASS],
            "iam:PassRole",
            "arn:aws:iam::123456789012:role/EC2-roles-for-XYZ-1",
            {"iam:PassedToService": ["sagemaker.amazonaws.com"]},
            IMPLICIT,
        ),
        (
            [HOME],
            "s3:PutObject",
            "arn:aws:s3:::home-bucket/home/ana/x",
            {"aws:username": ["ana"]},
            ALLOWED,
        ),
        (
            [HOME],
            "s3:PutObject",
            "arn:aws:s3:::home-bucket/home/bob/x",
            {"aws:username": ["ana"]},
            IMPLICIT,
        ),
        ([TAGS], "ec2:CreateTags", "*", {"aws:TagKeys": ["environment"]}, ALLOWED),
        ([TAGS], "ec2:CreateTags", "*", {"aws:TagKeys": ["environment", "x"]}, IMPLICIT),
        ([TAGS], "ec2:CreateTags", "*", {}, ALLOWED),  # ForAllValues holds of no value
        ([TYPES], JOB, ANY, {"sagemaker:InstanceTypes": ["ml.c5.xlarge"]}, ALLOWED),
        ([TYPES], JOB, ANY, {"sagemaker:InstanceTypes": ["ml.c5.x", "ml.p4d.x"]}, IMPLICIT),
    ],
)
def test_aws_examples(
    policies: list[Any], action: str, resource: str, context: dict[str, list[str]], decision: str
) -> None:
    assert evaluate(policies, action, resource, context).decision == decision
