"""The settings of training on the server's own labelled images alone, which are ``image_training``'s."""

from common.settings.base import Disclosure, Settings


class ServerSettings(Settings):
    """The server trains on its validation images, as image_training says, and no site is asked for anything."""

    @property
    def trains_on_images(self) -> bool:
        """It does."""
        return True

    @property
    def trains_on_validation(self) -> bool:
        """It does."""
        return True

    def disclosure(self) -> Disclosure:
        """State what leaves a device."""
        return Disclosure("nothing", update=False)
