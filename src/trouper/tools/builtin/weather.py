"""get_weather and get_forecast: made-up weather, the same for the same place, for demonstrations and tests. The result says so."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, TypeAlias

from trouper.core.messages import Json
from trouper.tools.define import tool
from trouper.tools.errors import ToolError
from trouper.tools.schema import Param

NOTE = "Demo data, made up from the name of the place; not a real observation."
_SKIES = ("clear", "partly cloudy", "cloudy", "light rain", "rain", "thunderstorm", "fog", "snow")

Location: TypeAlias = Annotated[str, Param("A place, such as 'Berlin'", min_length=1, max_length=200)]
Units: TypeAlias = Annotated[Literal["celsius", "fahrenheit"], Param("The unit of temperatures")]
Days: TypeAlias = Annotated[int, Param("How many days", ge=1, le=14)]


@tool(display_name="Get Weather", readonly=True, open_world=False)
async def get_weather(location: Location, units: Units = "celsius") -> Json:
    """Get the current weather at a place. Demo data: it is made up, and always the same for the same place.

    Errors: a location that is blank.
    """
    return {"location": location, "units": units, **_weather(location, 0, units), "note": NOTE}


@tool(display_name="Get Forecast", readonly=True, open_world=False)
async def get_forecast(location: Location, days: Days = 3, units: Units = "celsius") -> Json:
    """Get the weather of the next days at a place. Demo data: it is made up, and always the same for the same place.

    Errors: a location that is blank.
    """
    forecast = [{"day": day, **_weather(location, day, units)} for day in range(1, days + 1)]
    return {"location": location, "units": units, "forecast": forecast, "note": NOTE}


def _weather(location: str, day: int, units: str) -> dict[str, Json]:
    place = " ".join(location.casefold().split())
    if not place:
        raise ToolError("the location is blank; name a place")
    digest = hashlib.sha256(f"{place}\n{day}".encode(errors="replace")).digest()
    celsius = digest[0] % 45 - 10
    sky = _SKIES[digest[1] % (len(_SKIES) - 1)] if celsius > 2 else _SKIES[-1 - digest[1] % 3]
    return {
        "condition": sky,
        "temperature": celsius if units == "celsius" else round(celsius * 9 / 5 + 32),
        "humidity_percent": 30 + digest[2] % 66,
        "wind_km_per_h": digest[3] % 60,
    }
