"""What server and sites agree on: the configuration, what the data are, the task and the model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import torch

from common import models
from common.code.imports import is_import_path
from common.code.imports import load as load_path
from common.config.resolved import Config
from common.draws.seeding import generator, process_wide
from common.errors import ConfigError, FederationError
from common.learning.compute import torch_device
from common.learning.task import Task, task_of
from common.models import user_model
from common.models.building import ModelTemplate, outline
from common.models.classifier import personal_names
from common.samples.dataset import DatasetInfo
from common.settings.base import Settings
from common.settings.sections import ModelSettings
from common.wire.weights import Weights, WeightsSpec

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, eq=False)
class Run:
    """One run's shared facts; both apps have it of a ``Division`` of the same configuration."""

    config: Config
    info: DatasetInfo

    def of(self, method: str) -> Run:
        """Return the run as a method inside it has it, the same each time; ConfigError if its method uses none."""
        if ("method", method) not in self._others:
            self._others["method", method] = Run(self.config.of(method), self.info)
        return self._others["method", method]

    def settings(self, cls: type[S]) -> S:
        """Return the method's settings; FederationError unless they are ``cls``'s: parts of two methods were mixed."""
        settings = self.config.settings
        if not isinstance(settings, cls):
            raise FederationError(
                f"method={self.config.method} has {type(settings).__name__} where a part of it needs {cls.__name__}: "
                "make one inherit from the other, or replace that part in the method"
            )
        return settings

    def with_model(self, name: str) -> Run:
        """Return the run with the architecture ``name`` of its method in its own's place, the same object each time.

        Any other name is of a model of the run's own architecture, such as one of several sites'.
        ConfigError if the architecture cannot hold together with the run's other settings.
        """
        if name not in self.architectures:
            return self
        if ("model", name) not in self._others:
            config = replace(self.config, model=self.architectures[name])
            self._others["model", name] = Run(config, self.info)
        return self._others["model", name]

    @cached_property
    def architectures(self) -> Mapping[str, ModelSettings]:
        """The architectures that are learned besides the run's own, by the method or one inside it, by name."""
        config = self.config
        several = (settings.models(config.model) for settings in config.methods.values())
        return {name: model for models in several for name, model in models.items()}

    @cached_property
    def _others(self) -> dict[tuple[str, str], Run]:
        return {}

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """An image's, row's or series' (channels, height, width), where sites send such; ConfigError of text."""
        if not self.info.has_values:
            raise ConfigError(
                f"method={self.config.method} learns from images of each class, and {self.info.name} is text: choose "
                "a method that sends weights or updates, such as fedavg"
            )
        channels, height, width = self.info.shape
        return channels, height, width

    @cached_property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch_device(self.config.compute.device)

    @cached_property
    def task(self) -> Task:
        """What is learned."""
        return task_of(self.info)

    @property
    def parameters(self) -> int:
        """The numbers in the model's state; none of Nectar's own is built for it. ConfigError if it does not fit."""
        settings, info = self.config.model, self.info
        if is_import_path(settings.name):
            return _numbers(self._own_model)
        try:
            shape, classes = info.shape, len(info.classes)
            return _numbers(outline(shape=shape, classes=classes, **settings.architecture()))
        except ValueError as error:
            raise self._misfit(error) from None

    @cached_property
    def spec(self) -> WeightsSpec:
        """Names, shapes and dtypes of the shared state of the model: all, or all except what each site keeps."""
        model, chosen = self.build_model(), self.config.model
        every = WeightsSpec.of(model)
        try:
            own = personal_names(model, chosen.personal)
        except ValueError as error:
            raise ConfigError(f"{error}") from None
        shared = every.only([name for name in every.names if name not in own]) if own else every
        return shared.parameters if chosen.statistics == "local" else shared

    def build_model(self, *purpose: str | int) -> models.Classifier:
        """Return the model with the run's initial weights, the same in every process, on this process's device.

        With a ``purpose`` they are drawn from that purpose's seed. ConfigError if the model does not fit the data.
        """
        settings = self.config.model
        if is_import_path(settings.name):
            own = self._new_user_model(*purpose) if purpose else copy.deepcopy(self._own_model)
            return own.to(self.device)
        try:
            model = models.build(
                shape=self.info.shape,
                classes=len(self.info.classes),
                generator=generator(self.config.seed, "model", *purpose),
                **settings.architecture(),
            )
        except ValueError as error:
            raise self._misfit(error) from None
        return model.to(self.device)

    def model_with(self, weights: Weights) -> models.Classifier:
        """Return the run's model with ``weights`` instead of its initial ones, on this process's device.

        It is built as `build_model` does, and shared with nothing. What ``weights`` lack keeps its initial values.
        """
        template, given = self._template, weights.read_only
        if template is not None and template.covers(given):
            return template.instantiate(given)
        model = self.build_model()
        weights.load_into(model)
        return model

    def hand_over(self, model: models.Classifier, codec: str) -> Weights:
        """Return the weights of a model of `model_with`'s that was trained and is no longer used."""
        if self._template is None or not model.training or self.device.type != "cpu":
            return Weights.of(model, codec, copy=False)
        return Weights(self._template.hand_over(model), codec)

    @cached_property
    def _template(self) -> ModelTemplate | None:
        """What models are cast from, once a process; None of a model of the user's own, which may hold anything."""
        own = is_import_path(self.config.model.name)
        return None if own else ModelTemplate(self.build_model())

    @cached_property
    def _own_model(self) -> models.Classifier:
        """A model of the user's own with the run's initial weights, made and looked at once a process."""
        return self._new_user_model()

    def _new_user_model(self, *purpose: str | int) -> models.Classifier:
        path, shape, classes = self.config.model.name, self.info.shape, len(self.info.classes)
        if self.config.model.projection:
            raise ConfigError(
                f"model.projection={self.config.model.projection} is for Nectar's own models: give {path} a "
                "separate projection"
            )
        maker = load_path(path)
        try:
            with process_wide(self.config.seed, "model", *purpose):
                made = user_model.make(maker, path, shape, classes)
                return user_model.adopt(made, path, shape, classes)
        except ValueError as error:
            raise self._misfit(error) from error

    def _misfit(self, error: ValueError) -> ConfigError:
        return ConfigError(f"the model does not fit {self.config.dataset}: {error}")


def _numbers(model: torch.nn.Module) -> int:
    return sum(tensor.numel() for tensor in model.state_dict().values())
