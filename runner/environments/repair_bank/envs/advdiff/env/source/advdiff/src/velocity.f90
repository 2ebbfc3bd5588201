! Face-normal velocities of a steady flow. They are differences of a stream function at the cell corners,
!   u = d(psi)/dy on x faces,   v = -d(psi)/dx on y faces,
! so the discrete divergence of every cell is zero to rounding and a constant field stays constant.
module velocity
  use kinds, only: dp, pi
  use deck, only: deck_t
  use grid, only: grid_t
  implicit none

  type :: flow_t
    real(dp), allocatable :: u(:, :)   ! (0:nx, ny), on the faces between cells i and i+1
    real(dp), allocatable :: v(:, :)   ! (nx, 0:ny), on the faces between cells j and j+1
  end type flow_t

contains

  function make_flow(d, g) result(f)
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    type(flow_t) :: f
    integer :: i, j
    allocate(f%u(0:g%nx, g%ny), f%v(g%nx, 0:g%ny))
    do j = 1, g%ny
      do i = 0, g%nx
        f%u(i, j) = face_u(d, g, i, j)
      end do
    end do
    do j = 0, g%ny
      do i = 1, g%nx
        f%v(i, j) = face_v(d, g, i, j)
      end do
    end do
  end function make_flow

  real(dp) function face_u(d, g, i, j)
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    integer, intent(in) :: i, j
    face_u = (stream(d, g, i, j) - stream(d, g, i, j-1)) / g%dy
  end function face_u

  real(dp) function face_v(d, g, i, j)
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    integer, intent(in) :: i, j
    face_v = -(stream(d, g, i, j) - stream(d, g, i-1, j)) / g%dx
  end function face_v

  ! The stream function at the corner (i, j).
  real(dp) function stream(d, g, i, j)
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    integer, intent(in) :: i, j
    real(dp) :: x, y
    x = g%x_edge(i)
    y = g%y_edge(j)
    select case (d%flow)
    case ('none')
      stream = 0.0_dp
    case ('uniform')
      stream = d%speed_x * y - d%speed_y * x
    case ('rotation')   ! a solid-body core of angular speed 2 pi that vanishes smoothly at the walls
      stream = vortex(((x - 0.5_dp * g%length_x)**2 + (y - 0.5_dp * g%length_y)**2) / (0.5_dp * g%length_x)**2, &
        0.5_dp * g%length_x)
    case ('cellular')
      stream = d%speed_x / (2.0_dp * pi) * sin(2.0_dp * pi * x / g%length_x) * sin(2.0_dp * pi * y / g%length_y)
    case default
      error stop 'velocity: flow must be none, uniform, rotation or cellular'
    end select
  end function stream

  pure real(dp) function vortex(s, radius)
    real(dp), intent(in) :: s, radius   ! s = (distance / radius)**2
    vortex = 0.0_dp
    if (s < 1.0_dp) vortex = 0.25_dp * pi * radius**2 * (1.0_dp - s)**4
  end function vortex

end module velocity
