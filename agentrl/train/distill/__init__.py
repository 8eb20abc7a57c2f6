"""On-policy distillation: teachers, and the reverse KL from them as a part of the loss."""

from agentrl.train.distill.records import RowTeacher, Teacher, TeacherRow, TeacherTokens
from agentrl.train.distill.teacher_model import TeacherModel, load_teacher

__all__ = [
    "RowTeacher",
    "Teacher",
    "TeacherModel",
    "TeacherRow",
    "TeacherTokens",
    "load_teacher",
]
