"""Job: everything that is given before a plan is chosen."""

from __future__ import annotations

from gangsaw.spec.base import Document
from gangsaw.spec.cluster import ClusterSpec
from gangsaw.spec.model import ModelSpec
from gangsaw.spec.recipe import Recipe
from gangsaw.spec.site import SiteDoc
from gangsaw.spec.stack import StackProfile


class Job(Document):
    """A model to train by a recipe, with a software stack, on a cluster."""

    model: ModelSpec
    recipe: Recipe
    cluster: ClusterSpec
    stack: StackProfile
    site: SiteDoc | None = None
