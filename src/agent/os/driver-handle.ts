// Releases and reopens the NVIDIA driver on command (for a driver upgrade): which parts of the agent have it open, and
// since when it is released.

/** A part of the agent whose child processes open the driver's libraries or devices. */
export type DriverUser = {
  /** Resolves when none of its processes has the driver open, except those that cannot be ended. */
  release(): Promise<void>;
  reacquire(): void;
  /** Processes that have the driver open. */
  readonly openCount: () => number;
};

export type DriverState = {
  /** Wall clock since when the driver is released; undefined: it is not. */
  readonly releasedMs: number | undefined;
  /** Processes of the agent that have it open, also while it is released. */
  readonly held: number;
};

export type Driver = {
  join(user: DriverUser): void;
  /** Calls `listener` when the driver is released, before its processes end. */
  onRelease(listener: () => void): void;
  readonly releasedMs: () => number | undefined;
  readonly state: () => DriverState;
  release(): Promise<DriverState>;
  reacquire(): DriverState;
};

export function createDriver(now: () => number = Date.now): Driver {
  const users: DriverUser[] = [];
  const listeners: (() => void)[] = [];
  let releasedMs: number | undefined;
  const state = () => ({ releasedMs, held: users.reduce((sum, user) => sum + user.openCount(), 0) });
  return {
    join: (user) => void users.push(user),
    onRelease: (listener) => void listeners.push(listener),
    releasedMs: () => releasedMs,
    state,
    async release() {
      if (releasedMs === undefined) {
        releasedMs = now();
        for (const listener of listeners) listener();
      }
      await Promise.all(users.map((user) => user.release()));
      return state();
    },
    reacquire() {
      if (releasedMs !== undefined) {
        releasedMs = undefined;
        for (const user of users) user.reacquire();
      }
      return state();
    },
  };
}
