// The driver given up on command and taken again, for an upgrade of it: who of this agent has it open, and since when nobody
// may. Owns the word; letting go is the part of those who have it open.

/** Processes of the agent that open the driver's libraries or devices. */
export type DriverUser = {
  /** Resolves when none of them has it open any more, as far as they can be ended. */
  letGo(): Promise<void>;
  take(): void;
  /** Those that could not be ended: the driver holds them, and they it. */
  readonly held: () => number;
};

export type DriverState = {
  /** Wall clock since when it is given up; undefined: it is not. */
  readonly releasedMs: number | undefined;
  /** Processes of the agent that have it open all the same. */
  readonly held: number;
};

export type Driver = {
  join(user: DriverUser): void;
  readonly releasedMs: () => number | undefined;
  readonly state: () => DriverState;
  release(): Promise<DriverState>;
  take(): DriverState;
};

export function createDriver(onChange: () => void, now: () => number = Date.now): Driver {
  const users: DriverUser[] = [];
  let releasedMs: number | undefined;
  const state = () => ({ releasedMs, held: users.reduce((sum, user) => sum + user.held(), 0) });
  return {
    join: (user) => void users.push(user),
    releasedMs: () => releasedMs,
    state,
    async release() {
      if (releasedMs === undefined) {
        releasedMs = now();
        onChange();
      }
      await Promise.all(users.map((user) => user.letGo()));
      return state();
    },
    take() {
      if (releasedMs !== undefined) {
        releasedMs = undefined;
        for (const user of users) user.take();
      }
      return state();
    },
  };
}
