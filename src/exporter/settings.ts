// Settings of the exporter half: where metrics and the status page are served, how, and who may read them.
import * as v from 'valibot';
import { COMPAT_CHOICES, COMPAT_LIST } from '../api/compat-exporters.ts';
import { nonEmpty, type SettingsOf, whole } from '../common/schema.ts';

const COMPAT_WANTED = `names with commas, of ${COMPAT_CHOICES.join(', ')}; or nothing`;

const PageSettings = v.object({
  /** PEM, both or none: HTTPS. Followed when they change. */
  certFile: v.optional(v.string('a file, or nothing'), ''),
  keyFile: v.optional(v.string('a file, or nothing'), ''),
  /** Requests with the token in this file may read. */
  bearerTokenFile: v.optional(v.string('a file, or nothing'), ''),
  /** Requests whose token the API server authenticates and authorizes may read. */
  tokenReview: v.optional(v.boolean(), false),
  /** The data of the status page needs a token that was made for it, which the API server reviews. */
  statusTokens: v.optional(v.boolean(), false),
  /** Of the node half, for an exporter half in a process of its own; empty: one process is both, and listens. */
  socket: v.optional(v.string('a path, or nothing'), ''),
  /** User id that may connect to it besides root and the agent's own; 0: no other. */
  socketUser: v.optional(whole(0, 2 ** 32 - 2), 0),
});

/** The setting for which tokens are reviewed, if any. */
export const reviewingSetting = (page: v.InferOutput<typeof PageSettings>): string | undefined =>
  (['tokenReview', 'statusTokens'] as const).find((name) => page[name]);

export const EXPORTER_ENTRIES = {
  host: v.optional(nonEmpty('an address'), '127.0.0.1'),
  /** 0 takes a free one. */
  port: v.optional(whole(0, 65_535), 9837),
  /** A series for each process, the largest 50 of the node. */
  processMetrics: v.optional(v.boolean(), false),
  /** Exporters under whose metric names the page is served as well; with commas. */
  compatibilityMetrics: v.optional(v.pipe(v.string(COMPAT_WANTED), v.regex(COMPAT_LIST, COMPAT_WANTED)), ''),
  page: v.optional(PageSettings, {}),
};

export type ExporterSettings = SettingsOf<typeof EXPORTER_ENTRIES> & {
  readonly kubernetes: { readonly nodeName: string };
};
