// Compares the API server's audit log with RBAC: whether each permission of our service accounts was used, and whether
// they made requests that were forbidden. Roles that Kubernetes itself creates are out of scope; the comparison is
// pure.
import { existsSync, readFileSync } from 'node:fs';
import type { Bed } from '../bed/bed.ts';

/** The used part of an audit event (audit.k8s.io/v1, level Metadata). */
export type AuditEvent = {
  readonly verb: string;
  readonly requestURI: string;
  readonly user: { readonly username: string };
  readonly objectRef?: {
    readonly apiGroup?: string;
    readonly resource?: string;
    readonly subresource?: string;
    readonly namespace?: string;
    readonly name?: string;
  };
  readonly responseStatus?: { readonly code?: number };
  readonly annotations?: Readonly<Record<string, string>>;
};

export type Rule = {
  readonly apiGroups?: readonly string[];
  readonly resources?: readonly string[];
  readonly resourceNames?: readonly string[];
  readonly nonResourceURLs?: readonly string[];
  readonly verbs: readonly string[];
};
type Meta = { readonly name: string; readonly namespace?: string; readonly labels?: Readonly<Record<string, string>> };
export type Role = { readonly kind?: string; readonly metadata: Meta; readonly rules?: readonly Rule[] | null };
export type Binding = {
  readonly metadata: Meta;
  readonly roleRef: { readonly kind: string; readonly name: string };
  readonly subjects?: readonly { readonly kind: string; readonly name: string; readonly namespace?: string }[];
};
export type Roles = {
  readonly clusterRoles: readonly Role[];
  readonly roles: readonly Role[];
  readonly clusterRoleBindings: readonly Binding[];
  readonly roleBindings: readonly Binding[];
};

/** One verb on one resource. `namespace` undefined: all; `name` undefined: any. */
export type Permission = {
  readonly account: string;
  readonly role: string;
  readonly namespace?: string;
  readonly verb: string;
  /** `pods`, `pods/binding`, `leases.coordination.k8s.io`, or a non-resource URL. */
  readonly what: string;
  readonly name?: string;
};

export type Found = {
  /** Granted and never used. A wildcard matches no request, so it is always listed. */
  readonly unused: readonly string[];
  /** Requested and not granted. */
  readonly denied: readonly string[];
};

const OWN_ROLES_OF_KUBERNETES = 'kubernetes.io/bootstrapping';
const accountName = (namespace: string, name: string) => `system:serviceaccount:${namespace}:${name}`;

const thing = (group: string, resource: string): string => {
  const [kind, ...sub] = resource.split('/');
  return [group === '' ? kind : `${kind}.${group}`, ...sub].join('/');
};

function permissionsOfRule(rule: Rule): { verb: string; what: string; name?: string }[] {
  const things = (rule.resources ?? []).flatMap((resource) =>
    (rule.apiGroups ?? []).map((group) => thing(group, resource)),
  );
  const names = rule.resourceNames?.length ? rule.resourceNames.map((name) => ({ name })) : [{}];
  return [...things, ...(rule.nonResourceURLs ?? [])].flatMap((what) =>
    rule.verbs.flatMap((verb) => names.map((name) => ({ verb, what, ...name }))),
  );
}

/** Permissions of the service accounts of `namespace` by roles that are not Kubernetes' own. */
export function permissionsOf(namespace: string, all: Roles): Permission[] {
  const bound = [
    ...all.clusterRoleBindings.map((binding) => ({ binding, where: undefined })),
    ...all.roleBindings.map((binding) => ({ binding, where: binding.metadata.namespace })),
  ];
  return bound.flatMap(({ binding, where }) => {
    const { kind, name } = binding.roleRef;
    const role =
      kind === 'ClusterRole'
        ? all.clusterRoles.find(({ metadata }) => metadata.name === name)
        : all.roles.find(({ metadata }) => metadata.name === name && metadata.namespace === where);
    if (role === undefined || role.metadata.labels?.[OWN_ROLES_OF_KUBERNETES] !== undefined) return [];
    const accounts = (binding.subjects ?? []).filter(
      (subject) => subject.kind === 'ServiceAccount' && subject.namespace === namespace,
    );
    return accounts.flatMap((account) =>
      (role.rules ?? []).flatMap(permissionsOfRule).map((permission) => ({
        account: accountName(namespace, account.name),
        role: name,
        ...(where !== undefined && { namespace: where }),
        ...permission,
      })),
    );
  });
}

function asked({ verb, requestURI, objectRef }: AuditEvent): { verb: string; what: string } {
  const { apiGroup = '', resource, subresource } = objectRef ?? {};
  if (resource === undefined) return { verb, what: requestURI.split('?')[0] ?? '' };
  return { verb, what: thing(apiGroup, subresource === undefined ? resource : `${resource}/${subresource}`) };
}

const CREATED = 201;

/** A server-side apply of a new object also needs the right to create, which the server checks. */
const isVerb = (verb: string, { verb: asked, responseStatus }: AuditEvent): boolean =>
  verb === asked || (verb === 'create' && asked === 'patch' && responseStatus?.code === CREATED);

function isUse(permission: Permission, event: AuditEvent): boolean {
  const { what } = asked(event);
  const { namespace, name } = event.objectRef ?? {};
  return (
    event.user.username === permission.account &&
    isVerb(permission.verb, event) &&
    what === permission.what &&
    (permission.namespace === undefined || permission.namespace === namespace) &&
    (permission.name === undefined || permission.name === name)
  );
}

const inWords = (account: string, verb: string, what: string, name?: string, namespace?: string): string =>
  [`${account}: ${verb} ${what}`, name && `"${name}"`, namespace && `in ${namespace}`].filter(Boolean).join(' ');

export function comparePermissions(permissions: readonly Permission[], events: readonly AuditEvent[]): Found {
  const allowed = events.filter((event) => event.annotations?.['authorization.k8s.io/decision'] === 'allow');
  const refused = events.filter((event) => event.annotations?.['authorization.k8s.io/decision'] === 'forbid');
  const unused = permissions.filter((permission) => !allowed.some((event) => isUse(permission, event)));
  const denied = refused.map((event) => {
    const { verb, what } = asked(event);
    return inWords(event.user.username, verb, what, event.objectRef?.name, event.objectRef?.namespace);
  });
  return {
    unused: [
      ...new Set(
        unused.map(
          ({ account, verb, what, name, namespace, role }) =>
            `${inWords(account, verb, what, name, namespace)} (role ${role})`,
        ),
      ),
    ],
    denied: [...new Set(denied)],
  };
}

export const readAudit = (path: string): AuditEvent[] =>
  existsSync(path)
    ? readFileSync(path, 'utf8')
        .split('\n')
        .filter((line) => line.endsWith('}')) // the last one may still be written
        .map((line) => JSON.parse(line) as AuditEvent)
    : [];

/** The comparison for the service accounts of `namespace`, as of now. */
export async function lookAtPermissions(bed: Bed, namespace: string): Promise<Found & { readonly held: number }> {
  const list = async <T>(kind: string): Promise<readonly T[]> =>
    (await bed.api.get<{ items: T[] }>(`/apis/rbac.authorization.k8s.io/v1/${kind}`))?.items ?? [];
  const permissions = permissionsOf(namespace, {
    clusterRoles: await list<Role>('clusterroles'),
    roles: await list<Role>('roles'),
    clusterRoleBindings: await list<Binding>('clusterrolebindings'),
    roleBindings: await list<Binding>('rolebindings'),
  });
  return { ...comparePermissions(permissions, readAudit(bed.auditLog)), held: permissions.length };
}
