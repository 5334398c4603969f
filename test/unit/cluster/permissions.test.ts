// The comparison of what service accounts may do with what they did, on rules and audit events as an API server writes
// them.
import test from 'ava';
import {
  type AuditEvent,
  type Binding,
  comparePermissions,
  type Found,
  permissionsOf,
  type Role,
  type Roles,
  type Rule,
} from '../../cluster/support/permissions.ts';

const NAMESPACE = 'ours';
const USER = 'system:serviceaccount:ours:agent';
const EMPTY: Roles = { clusterRoles: [], roles: [], clusterRoleBindings: [], roleBindings: [] };

const role = (rules: readonly Rule[], namespace?: string, labels = {}): Role => ({
  metadata: { name: 'role', ...(namespace && { namespace }), labels },
  rules,
});
const binding = (kind: string, namespace?: string, subject = { name: 'agent', namespace: NAMESPACE }): Binding => ({
  metadata: { name: 'binding', ...(namespace && { namespace }) },
  roleRef: { kind, name: 'role' },
  subjects: [{ kind: 'ServiceAccount', ...subject }],
});
const everywhere = (...rules: readonly Rule[]): Roles => ({
  ...EMPTY,
  clusterRoles: [role(rules)],
  clusterRoleBindings: [binding('ClusterRole')],
});
const event = (verb: string, objectRef: AuditEvent['objectRef'], decision = 'allow', username = USER): AuditEvent => ({
  verb,
  requestURI: '/somewhere?limit=1',
  user: { username },
  ...(objectRef && { objectRef }),
  annotations: { 'authorization.k8s.io/decision': decision },
});
const found = (roles: Roles, ...events: readonly AuditEvent[]): Found =>
  comparePermissions(permissionsOf(NAMESPACE, roles), events);

const PODS: Rule = { apiGroups: [''], resources: ['pods'], verbs: ['get', 'list'] };
const LEASES: Rule = { apiGroups: ['coordination.k8s.io'], resources: ['leases'], verbs: ['update'] };
const pods = { apiVersion: 'v1', resource: 'pods', namespace: 'team', name: 'one' };
const leases = { apiGroup: 'coordination.k8s.io', resource: 'leases', namespace: 'ours', name: 'leader' };
const got = event('get', pods);
const listed = event('list', { resource: 'pods' });

const CASES: readonly (readonly [string, Found, Found])[] = [
  ['a used permission is not reported', found(everywhere(PODS), got, listed), { unused: [], denied: [] }],
  [
    'one verb of a rule can be idle',
    found(everywhere(PODS), got),
    { unused: [`${USER}: list pods (role role)`], denied: [] },
  ],
  [
    'a refused request is no use and is reported once',
    found(everywhere(LEASES), event('update', leases, 'forbid'), event('update', leases, 'forbid')),
    {
      unused: [`${USER}: update leases.coordination.k8s.io (role role)`],
      denied: [`${USER}: update leases.coordination.k8s.io "leader" in ours`],
    },
  ],
  [
    'a subresource is another thing than its resource, and a group another than none',
    found(
      everywhere({ apiGroups: [''], resources: ['pods/binding', 'leases'], verbs: ['create'] }),
      event('create', pods),
      event('create', leases),
    ),
    { unused: [`${USER}: create pods/binding (role role)`, `${USER}: create leases (role role)`], denied: [] },
  ],
  [
    'another account uses nothing for this one',
    found(everywhere(LEASES), event('update', leases, 'allow', 'system:serviceaccount:ours:other')),
    { unused: [`${USER}: update leases.coordination.k8s.io (role role)`], denied: [] },
  ],
  [
    'each name of a rule must be used',
    found(everywhere({ ...LEASES, resourceNames: ['leader', 'spare'] }), event('update', leases)),
    { unused: [`${USER}: update leases.coordination.k8s.io "spare" (role role)`], denied: [] },
  ],
  [
    'an apply that created has used both rights, one that changed only its own',
    found(
      everywhere({ ...LEASES, verbs: ['create', 'patch'] }, { ...PODS, verbs: ['create', 'patch'] }),
      { ...event('patch', leases), responseStatus: { code: 201 } },
      { ...event('patch', pods), responseStatus: { code: 200 } },
    ),
    { unused: [`${USER}: create pods (role role)`], denied: [] },
  ],
  [
    'a wildcard is no request',
    found(everywhere({ apiGroups: ['*'], resources: ['*'], verbs: ['*'] }), got),
    { unused: [`${USER}: * *.* (role role)`], denied: [] },
  ],
  [
    'a path that is no resource is compared without its query',
    found(everywhere({ nonResourceURLs: ['/somewhere', '/metrics'], verbs: ['get'] }), event('get', undefined)),
    { unused: [`${USER}: get /metrics (role role)`], denied: [] },
  ],
  [
    'a role of a namespace is not used by requests in another',
    found({ ...EMPTY, roles: [role([PODS], 'ours')], roleBindings: [binding('Role', 'ours')] }, got, listed),
    { unused: [`${USER}: get pods in ours (role role)`, `${USER}: list pods in ours (role role)`], denied: [] },
  ],
  [
    'a cluster role bound in a namespace holds there',
    found(
      { ...EMPTY, clusterRoles: [role([LEASES])], roleBindings: [binding('ClusterRole', 'ours')] },
      event('update', leases),
    ),
    { unused: [], denied: [] },
  ],
  [
    'roles of Kubernetes itself and accounts of other namespaces are out of scope',
    found({
      ...EMPTY,
      clusterRoles: [role([PODS], undefined, { 'kubernetes.io/bootstrapping': 'rbac-defaults' })],
      roles: [role([PODS], 'ours')],
      clusterRoleBindings: [binding('ClusterRole')],
      roleBindings: [binding('Role', 'ours', { name: 'agent', namespace: 'theirs' })],
    }),
    { unused: [], denied: [] },
  ],
];

for (const [title, actual, expected] of CASES) {
  test(title, (t) => {
    t.deepEqual(actual, expected);
  });
}
