"""Why a GPU's clocks are what they are, as its driver says it."""

# NVML's bit, nvidia-smi's name, ours.
REASONS = (
    (0x2, "applications_clocks_setting", "applications clocks setting"),
    (0x4, "sw_power_cap", "SW power cap"),
    (0x8, "hw_slowdown", "HW slowdown"),
    (0x20, "sw_thermal_slowdown", "SW thermal slowdown"),
    (0x40, "hw_thermal_slowdown", "HW thermal slowdown"),
    (0x80, "hw_power_brake_slowdown", "HW power brake"),
)
# Heat or the power brake: a rate that was measured meanwhile means nothing.
THROTTLING = 0x8 | 0x20 | 0x40 | 0x80
